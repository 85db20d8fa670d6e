(() => {
  "use strict";
  const symbols = { "reproduced": "✓", "contradicted": "✗", "inconclusive": "?", "shown": "○", "not run": "–" };
  const form = document.querySelector(".filters"), peek = document.querySelector(".peek");
  const rows = [...document.querySelectorAll(".board tbody tr")];
  const buttons = [...form.querySelectorAll("[data-verdict]")];
  const input = name => form.querySelector(`[data-filter=${name}]`);
  const css = name => name.replace(/[^a-z0-9-]+/gi, "-");
  form.hidden = false;

  const show = (cell, scale) => {
    const verdict = scale ? cell.getAttribute("data-at-" + css(scale)) || "not run" : cell.dataset.v;
    for (const name of Object.keys(symbols)) cell.classList.toggle(css(name), name === verdict);
    cell.firstElementChild.textContent = symbols[verdict];
    cell.lastElementChild.textContent = (scale || cell.dataset.scale).slice(0, 1).toUpperCase();
    if (scale && verdict === "not run") cell.lastElementChild.textContent = "";
    cell.setAttribute("aria-label", verdict + ": " + cell.dataset.says);
    return verdict;
  };

  const apply = () => {
    const wanted = new Set(buttons.filter(b => b.getAttribute("aria-pressed") === "true").map(b => b.dataset.verdict));
    const kind = input("kind").value, scale = input("scale").value, text = input("text").value.trim().toLowerCase();
    const totals = {}, papers = new Set();
    for (const row of rows) {
      const place = (!kind || row.dataset.kind.split(" ").includes(kind)) && row.dataset.text.includes(text);
      let hit = false;
      for (const cell of row.querySelectorAll(".cell")) {
        const verdict = show(cell, scale), match = !wanted.size || wanted.has(verdict);
        cell.classList.toggle("dim", !match);
        hit = hit || match;
        if (place && cell.classList.contains("claim")) totals[verdict] = (totals[verdict] || 0) + 1;
      }
      row.hidden = !(place && (hit || !wanted.size));
      if (!row.hidden && row.querySelector(".cell.claim")) papers.add(row.dataset.text);
    }
    for (const item of document.querySelectorAll("[data-total]"))
      item.querySelector("strong").textContent = totals[item.dataset.total] || 0;
    for (const bar of document.querySelectorAll(".share i"))
      for (const name of Object.keys(symbols)) if (bar.classList.contains(css(name))) {
        bar.style.flex = totals[name] || 0;
        bar.hidden = !totals[name];
      }
    form.querySelector("[data-shown]").textContent = papers.size + (papers.size === 1 ? " paper" : " papers");
    const state = new URLSearchParams();
    if (wanted.size) state.set("verdict", [...wanted].join(","));
    for (const [key, value] of [["kind", kind], ["scale", scale], ["text", text]]) if (value) state.set(key, value);
    if (state.size || location.hash.includes("=")) history.replaceState(null, "", "#" + state);
  };

  for (const button of buttons) button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    apply();
  });
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  const saved = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const verdicts = (saved.get("verdict") || "").split(",");
  for (const button of buttons) button.setAttribute("aria-pressed", verdicts.includes(button.dataset.verdict));
  for (const name of ["kind", "scale", "text"]) if (saved.get(name)) input(name).value = saved.get(name);
  apply();

  const tell = cell => {
    const box = peek.firstElementChild, part = (tag, text, name) => {
      const node = document.createElement(tag);
      node.textContent = text;
      if (name) node.className = name;
      box.append(node);
    };
    const verdict = cell.getAttribute("aria-label").split(":")[0];
    box.replaceChildren();
    part("span", symbols[verdict] + " " + verdict, "badge " + css(verdict));
    part("strong", cell.dataset.says);
    part("span", cell.dataset.found, "soft");
    peek.hidden = false;
  };
  document.addEventListener("mouseover", event => event.target.closest?.(".cell") && tell(event.target.closest(".cell")));
  document.addEventListener("focusin", event => {
    if (event.target.matches?.(".cell")) tell(event.target);
    else peek.hidden = true;
  });
  document.addEventListener("mouseout", event => {
    if (event.target.closest?.(".cell") && !document.activeElement.matches(".cell")) peek.hidden = true;
  });
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const here = document.activeElement, typing = here.matches("input, select");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      input("text").focus();
    } else if (event.key === "Escape" && typing) {
      input("text").value = "";
      apply();
      here.blur();
    }
    else if (here.matches(".cell") && event.key.startsWith("Arrow")) {
      const cells = [...here.parentNode.children], at = cells.indexOf(here);
      const lines = rows.filter(row => !row.hidden), line = lines.indexOf(here.closest("tr"));
      let next = null;
      if (event.key === "ArrowRight") next = cells[at + 1];
      else if (event.key === "ArrowLeft") next = cells[at - 1];
      else {
        const other = lines[line + (event.key === "ArrowDown" ? 1 : -1)];
        const there = other ? [...other.querySelectorAll(".cell")] : [];
        next = there[Math.min(at, there.length - 1)];
      }
      if (next) {
        event.preventDefault();
        next.focus();
      }
    }
  });
})();
