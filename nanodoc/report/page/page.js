"use strict";
(() => {
  const copy = document.getElementById("copy");
  copy.addEventListener("click", async () => {
    const text = document.getElementById("facts").textContent;
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById("facts"));
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      copy.textContent = "Selected";
    }
  });
})();
