// Small pieces of painting that hold no state.
"use strict";

const clipped = (text, limit) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);
const clippedLeft = (text, limit) => (text.length > limit ? `…${text.slice(1 - limit)}` : text);

const mixed = new Map();
function mix(colour, ground, part) {
  const key = `${colour}${ground}${part}`;
  if (!mixed.has(key)) {
    const [a, b] = [colour, ground].map((hex) => {
      const full = hex.length === 4 ? [...hex.slice(1)].map((digit) => digit + digit).join("") : hex.slice(1);
      return [0, 2, 4].map((place) => Number.parseInt(full.slice(place, place + 2), 16));
    });
    mixed.set(key, `rgb(${a.map((value, i) => Math.round(value * part + b[i] * (1 - part))).join(" ")})`);
  }
  return mixed.get(key);
}

function traceStraight(context, way) {
  context.moveTo(way[0], way[1]);
  for (let i = 2; i < way.length; i += 2) context.lineTo(way[i], way[i + 1]);
}

// From node to node through the bends, leaving and arriving upright.
function tracePath(context, way) {
  context.moveTo(way[0], way[1]);
  for (let i = 2; i < way.length; i += 2) {
    const [x0, y0, x1, y1] = [way[i - 2], way[i - 1], way[i], way[i + 1]];
    if (x0 === x1) context.lineTo(x1, y1);
    else {
      const middle = (y0 + y1) / 2;
      context.bezierCurveTo(x0, middle, x1, middle, x1, y1);
    }
  }
}
