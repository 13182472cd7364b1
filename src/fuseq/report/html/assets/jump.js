// Links to a row of a table: the row is shown whatever the table's filter, opened and lit.
"use strict";
(() => {
  const reveal = () => {
    const row = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (!(row instanceof HTMLTableRowElement)) return;
    document.querySelectorAll("tr.lit").forEach((other) => other.classList.remove("lit"));
    if (row.hidden) row.closest(".grid").dispatchEvent(new Event("fuseq-reveal"));
    row.classList.add("lit");
    row.querySelector("details")?.setAttribute("open", "");
    row.scrollIntoView({ block: "center" });
  };
  window.addEventListener("hashchange", reveal);
  reveal();
})();
