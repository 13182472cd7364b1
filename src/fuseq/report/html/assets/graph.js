// Wires the graph: made when it comes near the screen, moved by pointer, wheel and keys.
"use strict";

class GraphStage {
  constructor(stage) {
    const data = JSON.parse(document.getElementById("graph-data").textContent);
    this.data = data;
    this.stage = stage;
    this.canvas = document.getElementById("graph-canvas");
    this.search = document.getElementById("graph-search");
    this.found = document.getElementById("graph-found");
    this.choice = document.getElementById("graph-view");
    this.models = new Map();
    this.drawing = new GraphDrawing(this.canvas, document.getElementById("graph-map"));
    this.panel = new GraphPanel(document.getElementById("graph-detail"),
      (text) => { this.found.textContent = text; }, (node) => this.select(node, true));
    this.pointers = new Map();
    this.#listen();
    this.open(0);
    new ResizeObserver(() => this.drawing.resize()).observe(this.canvas);
  }

  open(number) {
    if (!this.models.has(number)) {
      const view = this.data.views[number];
      this.models.set(number, new GraphModel(view, this.data.words, this.data.engines[view.engine].kernels));
    }
    this.choice.value = String(number);
    this.model = this.models.get(number);
    this.panel.hide();
    this.drawing.show(this.model);
    this.#legend();
    this.#find();
  }

  select(node, reveal = false) {
    Object.assign(this.drawing, { selected: node, kernel: node < 0 ? -1 : this.model.view.kernels[node] });
    if (node < 0) {
      this.panel.hide();
      this.canvas.focus({ preventScroll: true });
    } else {
      this.panel.show(this.model, node);
      if (reveal) this.drawing.reveal(node);
    }
    this.stage.dataset.selected = node < 0 ? "" : this.model.view.names[node];
    this.drawing.ask();
  }

  // Called from links in tables: the node, or the kernel's first node, in the first view that has it.
  goTo(engine, kernel, name) {
    const number = this.data.views.findIndex((view) => view.engine === engine
      && (name ? view.names.includes(name) : view.kernels.includes(kernel)));
    if (number < 0) return;
    this.open(number);
    this.select(name ? this.model.indexOf(name) : this.model.members.get(kernel)[0], true);
  }

  #listen() {
    this.choice.addEventListener("change", () => this.open(Number(this.choice.value)));
    this.search.addEventListener("input", () => this.#find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.matches.length) return;
      const now = this.matches.indexOf(this.drawing.selected);
      this.select(this.matches[(now + 1) % this.matches.length], true);
    });
    const actions = { in: () => this.drawing.zoom(1.4), out: () => this.drawing.zoom(1 / 1.4),
      start: () => this.drawing.start(), all: () => this.drawing.all() };
    document.querySelectorAll("[data-graph]").forEach((button) =>
      button.addEventListener("click", actions[button.dataset.graph]));
    document.addEventListener("fuseq-theme", () => { this.drawing.readColours(); this.#legend(); this.drawing.ask(); });
    this.canvas.addEventListener("keydown", (event) => this.#key(event, actions));
    this.canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
      this.canvas.addEventListener(kind, (event) => this.#pointer(event));
    }
    this.drawing.map.addEventListener("pointerdown", (event) => this.#jump(event));
    this.drawing.map.addEventListener("pointermove", (event) => { if (event.buttons) this.#jump(event); });
  }

  #find() {
    this.matches = this.model.find(this.search.value);
    this.drawing.found = new Set(this.matches);
    this.found.textContent = this.search.value ? `${this.matches.length} found` : `${this.model.count} nodes`;
    this.drawing.ask();
  }

  #key(event, actions) {
    const { drawing, model } = this;
    const from = drawing.selected;
    const step = {
      ArrowDown: () => model.readers[from]?.[0], ArrowUp: () => model.producers[from]?.[0],
      ArrowLeft: () => model.beside(from, -1), ArrowRight: () => model.beside(from, 1),
    }[event.key];
    const other = { "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.start,
      Escape: () => this.select(-1) }[event.key];
    if (!step && !other) return;
    event.preventDefault();
    if (other) other();
    else {
      const [wide, high] = [this.canvas.clientWidth, this.canvas.clientHeight];
      const next = from < 0
        ? model.nearest(drawing.left + wide / 2 / drawing.scale, drawing.top + high / 2 / drawing.scale)
        : step();
      if (next !== undefined && next >= 0) this.select(next, true);
    }
  }

  // The wheel scrolls the page until the graph was clicked or Ctrl is held: nobody is caught by it.
  #wheel(event) {
    if (!event.ctrlKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    this.drawing.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY);
  }

  #pointer(event) {
    const { pointers, drawing } = this;
    const before = pointers.get(event.pointerId);
    if (event.type === "pointerdown") {
      this.canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, moved: 0 });
    } else if (event.type === "pointermove" && before) {
      const [dx, dy] = [event.offsetX - before.x, event.offsetY - before.y];
      if (pointers.size === 2) this.#pinch(event, before);
      else drawing.move(dx, dy);
      pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, moved: before.moved + Math.hypot(dx, dy) });
    } else if (before) {
      pointers.delete(event.pointerId);
      if (event.type === "pointerup" && before.moved < 5) {
        this.select(this.model.at(drawing.left + event.offsetX / drawing.scale, drawing.top + event.offsetY / drawing.scale));
      }
    }
  }

  #pinch(event, before) {
    const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
    const [was, is] = [Math.hypot(before.x - other.x, before.y - other.y), Math.hypot(event.offsetX - other.x, event.offsetY - other.y)];
    if (was > 0) this.drawing.zoom(is / was, other.x, other.y);
  }

  #jump(event) {
    const { model, drawing } = this;
    const part = event.offsetY / drawing.map.clientHeight;
    drawing.centre(drawing.left + this.canvas.clientWidth / 2 / drawing.scale, model.top + part * (model.bottom - model.top));
  }

  #legend() {
    const { view } = this.model;
    const tones = new Set(view.tones.map((tone) => this.data.words[tone]));
    const alone = ["q", "dq", "alone"].some((kind) => view.kinds.some((word) => this.data.words[word] === kind));
    const entries = [...tones].sort().map((tone) => [tone, tone.slice(2)]);
    if (alone) entries.push(["p-alone", view.kind === "onnx" ? "Q, DQ, Cast" : "only Q/DQ or cast"]);
    document.getElementById("graph-legend").replaceChildren(...entries.map(([tone, word]) => {
      const item = make("li");
      item.append(make("span", "", { class: `key ${tone}` }), make("span", word));
      return item;
    }));
  }
}

(() => {
  const stage = document.getElementById("graph-stage");
  if (!stage) return;
  const make = () => { stage.graph ??= new GraphStage(stage); return stage.graph; };
  new IntersectionObserver((entries, watcher) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    make();
  }, { rootMargin: "400px" }).observe(stage);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-engine]");
    if (link) make().goTo(Number(link.dataset.engine), Number(link.dataset.kernel ?? -1), link.dataset.node);
  });
  window.addEventListener("beforeprint", make);
})();
