// One view of the graph: columns of the page's data, and where things are. See graph_views.py.
"use strict";

const NODE = { width: 150, height: 32, pill: 92, pillHeight: 24 };

class GraphModel {
  constructor(view, words, kernels) {
    this.view = view;
    this.words = words;
    this.kernels = kernels.map(([name, type, precision, tone, measured, predicted, moved, weights, alone]) => ({
      name, type: words[type], precision: words[precision], tone: words[tone],
      measured, predicted, moved, weights, alone: alone === 1,
    }));
    this.count = view.names.length;
    this.x = Float32Array.from(view.x);
    this.y = Float32Array.from(view.y);
    this.order = [...this.x.keys()].sort((a, b) => this.y[a] - this.y[b] || this.x[a] - this.x[b]);
    this.sortedY = Float32Array.from(this.order, (node) => this.y[node]);
    this.left = Math.min(...view.x) - NODE.width / 2;
    this.right = Math.max(...view.x) + NODE.width / 2;
    this.top = view.y.length ? this.sortedY[0] - NODE.height : 0;
    this.bottom = view.y.length ? this.sortedY[this.count - 1] + NODE.height : 0;
    this.#readEdges();
    this.#readInner();
    this.members = new Map();
    view.kernels.forEach((kernel, node) => {
      if (kernel < 0) return;
      if (!this.members.has(kernel)) this.members.set(kernel, []);
      this.members.get(kernel).push(node);
    });
  }

  #readInner() {
    this.inner = new Map();
    for (const edge of this.edges) {
      const kernel = this.view.kernels[edge.source];
      if (kernel < 0 || kernel !== this.view.kernels[edge.reader]) continue;
      if (!this.inner.has(kernel)) this.inner.set(kernel, []);
      this.inner.get(kernel).push(edge);
    }
  }

  #readEdges() {
    const { edges, outs, ins } = this.view;
    this.readers = Array.from({ length: this.count }, () => []);
    this.producers = Array.from({ length: this.count }, () => []);
    this.edges = edges.map(([source, reader, ...bends]) => {
      this.readers[source].push(reader);
      this.producers[reader].push(source);
      const way = [this.x[source], this.y[source], ...bends, this.x[reader], this.y[reader]];
      const xs = way.filter((_, index) => index % 2 === 0);
      const ys = way.filter((_, index) => index % 2 === 1);
      return {
        source, reader, way,
        tensor: outs[source].find((tensor) => ins[reader].includes(tensor)) ?? -1,
        box: [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)],
      };
    });
    this.edgeBoxes = Float32Array.from(this.edges.flatMap((edge) => edge.box));
    this.kernelBoxes = Float32Array.from(this.view.boxes.flatMap((box) => box.slice(1, 5)));
  }

  word(column, node) { return this.words[this.view[column][node]]; }
  kind(node) { return this.word("kinds", node); }
  isPill(node) { return ["q", "dq", "cast", "end"].includes(this.kind(node)); }
  width(node) { return this.isPill(node) ? NODE.pill : NODE.width; }
  height(node) { return this.isPill(node) ? NODE.pillHeight : NODE.height; }

  // Numbers of the nodes between two heights, found by halving.
  between(top, bottom) {
    return this.order.slice(this.#first(top - NODE.height), this.#first(bottom + NODE.height));
  }

  #first(limit) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.sortedY[middle] < limit) low = middle + 1; else high = middle;
    }
    return low;
  }

  // Numbers of the boxes (four sides each, one after the other) that touch what is seen.
  touching(boxes, seen) {
    const found = [];
    for (let i = 0; i < boxes.length; i += 4) {
      if (boxes[i] <= seen.right && boxes[i + 2] >= seen.left
        && boxes[i + 1] <= seen.bottom && boxes[i + 3] >= seen.top) found.push(i / 4);
    }
    return found;
  }

  at(x, y) {
    return this.between(y, y).find((node) => Math.abs(this.x[node] - x) <= this.width(node) / 2 + 3
      && Math.abs(this.y[node] - y) <= this.height(node) / 2 + 3) ?? -1;
  }

  nearest(x, y) {
    let best = -1, least = Infinity;
    for (let node = 0; node < this.count; node += 1) {
      const far = Math.hypot(this.x[node] - x, 2 * (this.y[node] - y));
      if (far < least) [best, least] = [node, far];
    }
    return best;
  }

  beside(node, direction) {
    const along = this.order.filter((other) => this.y[other] === this.y[node]);
    const place = along.indexOf(node) + direction;
    if (along[place] !== undefined) return along[place];
    return this.order[this.order.indexOf(node) + direction] ?? node;
  }

  find(text) {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return [];
    return this.order.filter((node) => {
      const own = `${this.view.names[node]} ${this.word("labels", node)} ${this.word("modules", node)}`
        .toLowerCase();
      return wanted.every((word) => own.includes(word));
    });
  }

  edgesWithin(kernel) { return this.inner.get(kernel) ?? []; }

  indexOf(name) { return this.view.names.indexOf(name); }

  title(node) {
    const [kind, label] = [this.kind(node), this.word("labels", node)];
    if (this.view.kind === "kernels") {
      const time = this.kernels[node].measured ?? this.kernels[node].predicted;
      return time === null ? label : `${label} ${time.toFixed(1)} µs`;
    }
    if (kind !== "q" && kind !== "dq") return label;
    const tensor = this.view.outs[node].length ? this.view.tensors[this.view.outs[node][0]] : null;
    const scale = tensor?.[4] ? ` ${Number(tensor[4][1].toPrecision(3))}` : "";
    return `${kind.toUpperCase()}${scale}`;
  }
}
