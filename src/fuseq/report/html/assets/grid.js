// Tables sort by their headings and are filtered by search and choices; see grid.py for the markup.
"use strict";
(() => {
  const keyOf = (cell) => cell.dataset.key ?? cell.querySelector(":scope > data")?.value
    ?? cell.querySelector("summary")?.textContent ?? cell.textContent;

  const enhance = (grid) => {
    const body = grid.querySelector("tbody");
    const rows = [...body.rows];
    const headings = [...grid.querySelectorAll("thead th")];
    const search = grid.querySelector("input[type=search]");
    const choices = [...grid.querySelectorAll("select")];
    const shown = grid.querySelector(".shown");
    let texts = null; // made at the first search: reading text of thousands of rows takes time

    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length && !texts) texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
      let visible = 0;
      for (const row of rows) {
        const chosen = choices.every((choice) => !choice.value
          || keyOf(row.cells[choice.dataset.column]) === choice.value);
        const found = chosen && words.every((word) => texts.get(row).includes(word));
        row.hidden = !found;
        visible += found ? 1 : 0;
      }
      shown.textContent = `${visible} of ${rows.length}`;
    };

    const sort = (heading) => {
      const column = Number(heading.dataset.column);
      const numeric = heading.classList.contains("n");
      const before = heading.getAttribute("aria-sort");
      const first = numeric && column > 0 ? "descending" : "ascending";
      const order = before === "none" ? first : before === "ascending" ? "descending" : "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const keys = new Map(rows.map((row) => [row, keyOf(row.cells[column])]));
      const number = (row) => {
        const value = Number.parseFloat(keys.get(row));
        return Number.isNaN(value) ? null : value;
      };
      const compare = numeric
        ? (a, b) => {
          const [x, y] = [number(a), number(b)];
          if (x === null || y === null) return (x === null) - (y === null); // unknown stays last
          return sign * (x - y);
        }
        : (a, b) => sign * keys.get(a).localeCompare(keys.get(b), "en", { numeric: true });
      body.append(...[...rows].sort(compare));
    };

    headings.forEach((heading) =>
      heading.querySelector("button").addEventListener("click", () => sort(heading)));
    if (!search) return;
    search.addEventListener("input", filter);
    choices.forEach((choice) => choice.addEventListener("change", filter));
    grid.addEventListener("fuseq-reveal", () => {
      search.value = "";
      choices.forEach((choice) => { choice.value = ""; });
      filter();
    });
  };

  document.querySelectorAll(".grid").forEach(enhance);
})();
