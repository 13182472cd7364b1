// The panel beside the graph: everything about a node, as text and buttons. Model text is only ever text.
"use strict";

class GraphPanel {
  constructor(element, say, go) {
    this.element = element;
    this.say = say;
    this.go = go;
  }

  hide() {
    this.element.hidden = true;
  }

  show(model, node) {
    const { view } = model;
    const kernel = view.kernels[node];
    const heading = make("h3", model.word("labels", node) || "node");
    const close = make("button", "Close", { type: "button", class: "tool" });
    close.addEventListener("click", () => this.go(-1));
    const rows = [["Name", view.names[node]], ["Module", model.word("modules", node)],
      ["Source", model.word("sources", node)],
      ["Constants", view.weights[node] ? bytes(view.weights[node]) : ""]];
    const list = make("dl");
    for (const [label, value] of rows) if (value) list.append(make("dt", label), make("dd", value));
    const top = make("div", "", { class: "detail-top" });
    top.append(heading, close);
    const parts = [top, list];
    if (kernel >= 0) parts.push(this.kernelPart(model, kernel));
    parts.push(this.tensors("Reads", model, view.ins[node], model.producers[node]));
    parts.push(this.tensors("Writes", model, view.outs[node], model.readers[node]));
    this.element.replaceChildren(...parts.filter(Boolean));
    this.element.hidden = false;
    this.element.scrollTop = 0;
    this.say(`${model.word("labels", node)} ${view.names[node]}`);
  }

  kernelPart(model, kernel) {
    const row = model.kernels[kernel];
    const part = make("section");
    part.append(make("h4", model.view.kind === "onnx" ? "Runs in kernel" : "Kernel"));
    const link = make("a", row.name, { href: `#kernel-${model.view.engine}-${kernel}` });
    const list = make("dl");
    list.append(make("dt", "Name"), make("dd"));
    list.lastChild.append(link);
    const rows = [["Type", row.type + (row.alone ? ", only Q/DQ or cast" : "")], ["Precision", row.precision],
      ["Measured", row.measured === null ? "" : `${row.measured.toFixed(1)} µs`, row.measured],
      ["Predicted", row.predicted === null ? "" : `${row.predicted.toFixed(1)} µs`, row.predicted],
      ["Moves", bytes(row.moved), row.moved], ["Weights", row.weights ? bytes(row.weights) : "", row.weights],
      ["ONNX nodes", model.view.kind === "onnx" ? String(model.members.get(kernel).length) : ""]];
    for (const [label, value, exact] of rows) {
      if (value) list.append(make("dt", label), make("dd", value, exact ? { title: String(exact) } : {}));
    }
    part.append(list);
    return part;
  }

  tensors(title, model, numbers, neighbours) {
    if (!numbers.length) return null;
    const part = make("section");
    part.append(make("h4", title));
    for (const number of numbers) {
      const [name, shape, dtype, nbytes, scale, count] = model.view.tensors[number];
      const sizes = shape === null ? "shape unknown" : shape.length ? shape.join("×") : "scalar";
      const entry = make("div", "", { class: "tensor" });
      entry.append(make("code", name));
      entry.append(make("span", [dtype, sizes, nbytes === null ? "" : bytes(nbytes)].filter(Boolean).join(", ")));
      if (scale) {
        const range = scale[0] === scale[1] ? `scale ${scale[0]}` : `${count} scales, ${scale[0]} to ${scale[1]}`;
        entry.append(make("span", range));
      }
      part.append(entry);
    }
    const ways = make("div", "", { class: "ways" });
    for (const other of neighbours.slice(0, 12)) {
      const button = make("button", `${title === "Reads" ? "↑" : "↓"} ${model.word("labels", other)}`,
        { type: "button", class: "tool", title: model.view.names[other] });
      button.addEventListener("click", () => this.go(other));
      ways.append(button);
    }
    if (neighbours.length > 12) ways.append(make("span", `and ${neighbours.length - 12} more`));
    part.append(ways);
    return part;
  }
}

function make(name, text = "", attributes = {}) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function bytes(value) {
  if (value >= 1e5) return `${(value / 1e6).toFixed(1)} MB`;
  return value >= 1e3 ? `${(value / 1e3).toFixed(1)} kB` : `${value} B`;
}
