// Draws a view on a canvas: only what is seen, and no more detail than can be read at this zoom.
"use strict";

const ZOOM = { least: 0.004, most: 2.5, text: 0.42, names: 0.7, boxes: 0.03, edges: 0.012 };

class GraphDrawing {
  constructor(canvas, map) {
    this.canvas = canvas;
    this.map = map;
    this.context = canvas.getContext("2d");
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.selected = -1;
    this.kernel = -1;
    this.found = new Set();
    this.model = null;
    this.asked = false;
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(this.canvas);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colour = Object.fromEntries(
      ["surface", "raised", "ink", "soft", "faint", "line", "line-strong", "accent", "other", "alone"]
        .map((name) => [name, read(name)]));
    const tones = ["fp32", "fp16", "bf16", "fp8", "int8", "int4", "other", "alone"];
    this.tones = Object.fromEntries(tones.map((tone) => [`p-${tone}`, read(tone)]));
    Object.assign(this.tones, { "p-tf32": this.tones["p-fp32"], "p-uint8": this.tones["p-int8"] });
    this.font = getComputedStyle(document.body).fontFamily;
    this.mapImage = null;
  }

  show(model) {
    Object.assign(this, { model, selected: -1, kernel: -1, found: new Set(), mapImage: null });
    this.edgeTones = model.edges.map((edge) => this.toneOfTensor(model.view.tensors[edge.tensor]));
    this.start();
  }

  toneOfTensor(tensor) {
    const tone = tensor ? `p-${tensor[2]}` : "p-other";
    return ["p-fp8", "p-int8", "p-uint8", "p-int4"].includes(tone) ? tone : "";
  }

  toneOfNode(node) {
    const kind = this.model.kind(node);
    return ["q", "dq", "cast", "alone"].includes(kind) ? this.tones["p-alone"]
      : this.tones[this.model.word("tones", node)] ?? this.colour.other;
  }

  toneOfKernel(kernel) {
    const row = this.model.kernels[kernel];
    return row.alone ? this.tones["p-alone"] : this.tones[row.tone] ?? this.colour.other;
  }

  resize() {
    for (const canvas of [this.canvas, this.map]) {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    }
    this.mapImage = null;
    this.draw();
  }

  start() {
    const { model, canvas } = this;
    const fit = canvas.clientWidth / (model.right - model.left + 120);
    this.scale = Math.min(1, Math.max(0.5, fit));
    const first = model.order[0] ?? 0;
    this.left = (model.x[first] ?? 0) - canvas.clientWidth / 2 / this.scale;
    this.top = model.top - 24 / this.scale;
    this.ask();
  }

  all() {
    const { model, canvas } = this;
    const [wide, high] = [model.right - model.left + 80, model.bottom - model.top + 80];
    this.scale = Math.max(ZOOM.least, Math.min(1, canvas.clientWidth / wide, canvas.clientHeight / high));
    this.left = (model.left + model.right) / 2 - canvas.clientWidth / 2 / this.scale;
    this.top = (model.top + model.bottom) / 2 - canvas.clientHeight / 2 / this.scale;
    this.ask();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const next = Math.min(ZOOM.most, Math.max(ZOOM.least, this.scale * factor));
    this.left += x / this.scale - x / next;
    this.top += y / this.scale - y / next;
    this.scale = next;
    this.ask();
  }

  move(dx, dy) {
    this.left -= dx / this.scale;
    this.top -= dy / this.scale;
    this.ask();
  }

  centre(x, y) {
    this.left = x - this.canvas.clientWidth / 2 / this.scale;
    this.top = y - this.canvas.clientHeight / 2 / this.scale;
    this.ask();
  }

  reveal(node) {
    if (this.scale < ZOOM.names) this.scale = 0.9;
    this.centre(this.model.x[node], this.model.y[node]);
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  draw() {
    if (!this.model) return;
    const { context, canvas, scale } = this;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.colour.surface;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.setTransform(scale * ratio, 0, 0, scale * ratio, -this.left * scale * ratio, -this.top * scale * ratio);
    this.seen = {
      left: this.left - NODE.width, top: this.top - NODE.height,
      right: this.left + canvas.clientWidth / scale + NODE.width,
      bottom: this.top + canvas.clientHeight / scale + NODE.height,
    };
    const nodes = this.model.between(this.seen.top, this.seen.bottom)
      .filter((node) => this.model.x[node] > this.seen.left && this.model.x[node] < this.seen.right);
    if (scale > ZOOM.boxes) this.drawBoxes();
    if (scale > ZOOM.edges) this.drawEdges();
    this.drawNodes(nodes);
    this.drawMap(ratio);
  }

  // A fused kernel is a rectangle where only its own nodes stand inside, else its nodes joined by bands.
  drawBoxes() {
    const { context, model, seen } = this;
    for (const number of model.touching(model.kernelBoxes, seen)) {
      const [kernel, left, top, right, bottom, alone] = model.view.boxes[number];
      const tone = this.toneOfKernel(kernel);
      context.fillStyle = mix(tone, this.colour.surface, kernel === this.kernel ? 0.24 : 0.15);
      context.strokeStyle = mix(tone, this.colour.surface, kernel === this.kernel ? 1 : 0.5);
      context.lineWidth = kernel === this.kernel ? 2.5 : 1;
      if (alone) {
        context.beginPath();
        context.roundRect(left, top, right - left, bottom - top, 10);
        context.fill();
        context.stroke();
      } else this.drawBand(kernel);
      if (this.scale > ZOOM.text && alone) this.drawBoxTitle(kernel, left, top);
    }
  }

  drawBand(kernel) {
    const { context, model } = this;
    const nodes = model.members.get(kernel);
    context.lineCap = "round";
    context.lineJoin = "round";
    for (const grow of [1, 0]) {
      const fill = context.fillStyle;
      const line = context.strokeStyle;
      context.beginPath();
      for (const edge of model.edgesWithin(kernel)) tracePath(context, edge.way);
      context.lineWidth = 20 + 2 * grow;
      if (!grow) context.strokeStyle = fill;
      context.stroke();
      context.fillStyle = grow ? line : fill;
      context.beginPath();
      for (const node of nodes) {
        const [w, h] = [model.width(node) + 16 + 2 * grow, model.height(node) + 16 + 2 * grow];
        context.roundRect(model.x[node] - w / 2, model.y[node] - h / 2, w, h, 9);
      }
      context.fill();
      context.fillStyle = fill;
      context.strokeStyle = line;
    }
  }

  drawBoxTitle(kernel, left, top) {
    const { context } = this;
    context.font = `600 8.5px ${this.font}`;
    context.fillStyle = this.colour.soft;
    context.textAlign = "left";
    context.textBaseline = "bottom";
    const row = this.model.kernels[kernel];
    const time = row.measured ?? row.predicted;
    const word = row.measured === null ? "predicted" : "measured";
    context.fillText(time === null ? row.type : `${row.type}, ${time.toFixed(1)} µs ${word}`, left + 4, top - 2);
  }

  drawEdges() {
    const { context, model, seen, scale } = this;
    const groups = new Map();
    for (const index of model.touching(model.edgeBoxes, seen)) {
      const edge = model.edges[index];
      const lit = this.selected >= 0 && (edge.source === this.selected || edge.reader === this.selected);
      const tone = lit ? "lit" : this.edgeTones[index];
      if (!groups.has(tone)) groups.set(tone, []);
      groups.get(tone).push(edge);
    }
    const rough = scale < 0.2;
    for (const [tone, edges] of groups) {
      context.strokeStyle = tone === "lit" ? this.colour.accent
        : tone ? mix(this.tones[tone], this.colour.surface, 0.8) : mix(this.colour.faint, this.colour.surface, 0.65);
      context.lineWidth = tone === "lit" ? 2.6 : Math.max(1.3, 0.7 / scale);
      context.beginPath();
      for (const edge of edges) (rough ? traceStraight : tracePath)(context, edge.way);
      context.stroke();
    }
  }

  drawNodes(nodes) {
    const { context, scale } = this;
    const groups = new Map();
    for (const node of nodes) {
      const tone = this.toneOfNode(node);
      if (!groups.has(tone)) groups.set(tone, []);
      groups.get(tone).push(node);
    }
    for (const [tone, some] of groups) {
      if (scale < 0.2) this.drawDots(some, tone);
      else some.forEach((node) => this.drawNode(node, tone));
    }
    for (const node of nodes) if (this.found.has(node) || node === this.selected) this.drawRing(node);
    context.globalAlpha = 1;
  }

  drawDots(nodes, tone) {
    const { context, model } = this;
    context.fillStyle = tone;
    for (const node of nodes) {
      const [w, h] = [model.width(node), model.height(node)];
      context.fillRect(model.x[node] - w / 2, model.y[node] - h / 2, w, h);
    }
  }

  drawNode(node, tone) {
    const { context, model, scale } = this;
    const [w, h] = [model.width(node), model.height(node)];
    const [left, top] = [model.x[node] - w / 2, model.y[node] - h / 2];
    const pill = model.isPill(node);
    context.beginPath();
    context.roundRect(left, top, w, h, pill ? h / 2 : 6);
    context.fillStyle = mix(tone, this.colour.surface, pill ? 0.24 : 0.12);
    context.fill();
    context.lineWidth = 1.2;
    context.strokeStyle = mix(tone, this.colour.surface, 0.75);
    context.stroke();
    if (!pill) {
      context.beginPath();
      context.roundRect(left, top, 6, h, [6, 0, 0, 6]);
      context.fillStyle = tone;
      context.fill();
    }
    if (scale < ZOOM.text) return;
    context.fillStyle = this.colour.ink;
    context.textBaseline = "middle";
    context.textAlign = pill ? "center" : "left";
    const named = !pill && scale > ZOOM.names;
    context.font = `600 ${pill ? 11 : 12}px ${this.font}`;
    const at = pill ? model.x[node] : left + 14;
    context.fillText(clipped(model.title(node), pill ? 13 : 22), at, model.y[node] + (named ? -6 : 0.5));
    if (!named) return;
    context.font = `9px ${this.font}`;
    context.fillStyle = this.colour.soft;
    context.fillText(clippedLeft(model.view.names[node], 25), at, model.y[node] + 8);
  }

  drawRing(node) {
    const { context, model } = this;
    const [w, h] = [model.width(node) + 8, model.height(node) + 8];
    context.strokeStyle = this.colour.accent;
    context.lineWidth = Math.max(node === this.selected ? 3 : 2, 2 / this.scale);
    context.beginPath();
    context.roundRect(model.x[node] - w / 2, model.y[node] - h / 2, w, h, model.isPill(node) ? h / 2 : 9);
    context.stroke();
  }

  // The strip at the side: the whole graph, stretched to the strip, and the window on it.
  drawMap(ratio) {
    const { map, model } = this;
    const fit = this.fit(ratio);
    if (!this.mapImage) {
      this.mapImage = document.createElement("canvas");
      Object.assign(this.mapImage, { width: map.width, height: map.height });
      const context = this.mapImage.getContext("2d");
      for (let node = 0; node < model.count; node += 1) {
        context.fillStyle = this.toneOfNode(node);
        const high = Math.max(ratio, Math.min(8, NODE.height * fit.y));
        context.fillRect(fit.x * (model.x[node] - model.left - NODE.width / 2) + fit.left,
          fit.y * (model.y[node] - model.top) - high / 2, Math.max(2 * ratio, NODE.width * fit.x), high);
      }
    }
    const context = map.getContext("2d");
    context.clearRect(0, 0, map.width, map.height);
    context.drawImage(this.mapImage, 0, 0);
    context.strokeStyle = this.colour.accent;
    context.lineWidth = 1.5 * ratio;
    const top = fit.y * (this.top - model.top);
    const high = Math.max(6 * ratio, fit.y * this.canvas.clientHeight / this.scale);
    context.strokeRect(context.lineWidth, top, map.width - 2 * context.lineWidth, high);
  }

  fit(ratio) {
    const { map, model } = this;
    const x = Math.min(map.width / (model.right - model.left || 1), 0.16 * ratio);
    return { x, y: map.height / (model.bottom - model.top || 1), left: (map.width - x * (model.right - model.left)) / 2 };
  }
}
