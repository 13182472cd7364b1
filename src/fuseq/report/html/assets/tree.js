// The module tree: rows below a collapsed row are hidden; deep trees begin collapsed.
"use strict";
(() => {
  const startDepth = 3;
  for (const table of document.querySelectorAll("table.tree")) {
    const rows = [...table.tBodies[0].rows];
    const depth = (row) => Number(row.dataset.depth);
    const show = () => {
      let hiddenBelow = Infinity;
      for (const row of rows) {
        row.hidden = depth(row) > hiddenBelow;
        if (row.hidden) continue;
        hiddenBelow = row.getAttribute("aria-expanded") === "false" ? depth(row) : Infinity;
      }
    };
    const turn = (row, open) => { row.setAttribute("aria-expanded", String(open)); show(); };
    for (const row of rows.filter((each) => each.hasAttribute("aria-expanded"))) {
      const button = row.querySelector("button");
      if (rows.length > 40 && depth(row) >= startDepth) row.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => turn(row, row.getAttribute("aria-expanded") === "false"));
      button.addEventListener("keydown", (event) => {
        if (event.key === "ArrowLeft") turn(row, false);
        if (event.key === "ArrowRight") turn(row, true);
      });
    }
    show();
  }
})();
