(() => {
  "use strict";
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      getSelection().selectAllChildren(code);
    }
  });
  const open = () => {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { return; }
    const details = target && target.querySelector("details");
    if (details) details.open = true;
  };
  addEventListener("hashchange", open);
  open();
})();
