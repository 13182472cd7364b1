// Light, dark or as the system says; the choice is kept for this page only where storage is allowed.
"use strict";
(() => {
  const button = document.getElementById("theme");
  const order = ["system", "light", "dark"];
  const read = () => { try { return localStorage.getItem("fuseq-theme"); } catch { return null; } };
  const keep = (word) => { try { localStorage.setItem("fuseq-theme", word); } catch { /* file: may refuse */ } };
  let now = order.includes(read()) ? read() : "system";
  const apply = () => {
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = `Theme: ${now}`;
    document.dispatchEvent(new CustomEvent("fuseq-theme"));
  };
  button.addEventListener("click", () => {
    now = order[(order.indexOf(now) + 1) % order.length];
    keep(now);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
})();
