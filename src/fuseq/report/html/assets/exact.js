// Pointing at a number shows it in full: <data value> has it, and a title in each would double the file.
"use strict";
document.addEventListener("pointerover", (event) => {
  const number = event.target.closest?.("data");
  if (number && !number.title) number.title = `${number.value} ${number.dataset.unit ?? ""}`.trim();
});
