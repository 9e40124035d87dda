"use strict";
// Tables sort by a click on a heading, and copy; without scripts they stand as they were measured.
(() => {
  const value = (cell) =>
    cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  const isNothing = (shown) => shown === "" || shown === "–";
  const compare = (a, b) => {
    if (isNothing(a) || isNothing(b)) return NaN;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  };

  const sort = (table, at) => {
    const heads = table.tHead.rows[0].cells;
    const falls = heads[at].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[at].setAttribute("aria-sort", falls ? "descending" : "ascending");
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort((one, other) => {
      const a = value(one.cells[at]);
      const b = value(other.cells[at]);
      const found = compare(a, b);
      // What holds nothing stands last, whichever way the rest goes.
      if (Number.isNaN(found)) return Number(isNothing(a)) - Number(isNothing(b));
      return falls ? -found : found;
    });
    table.tBodies[0].append(...rows);
  };

  const lines = (table, field) =>
    Array.from(table.tBodies[0].rows, (row) => Array.from(row.cells, field));

  const csvField = (text) => {
    const shown = /^[=+@\t\r-]/.test(text) ? "'" + text : text;
    return /[",\r\n]/.test(shown) ? '"' + shown.replaceAll('"', '""') + '"' : shown;
  };
  const csvCell = (cell) => {
    if (cell.dataset.value !== undefined) return cell.dataset.value;
    return isNothing(cell.textContent) ? "" : csvField(cell.textContent);
  };
  const csv = (table) => {
    const keys = Array.from(table.tHead.rows[0].cells, (head) => csvField(head.dataset.key));
    return [keys, ...lines(table, csvCell)].map((line) => line.join(",") + "\r\n").join("");
  };

  const plain = (text) =>
    text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replace(/[\\`*_[\]|#!~]/g, "\\$&");
  const markdown = (table) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    const rule = heads.map((head) => (head.classList.contains("number") ? "---:" : "---"));
    const names = heads.map((head) => plain(head.textContent));
    const rows = lines(table, (cell) => plain(cell.textContent));
    return [names, rule, ...rows].map((line) => "| " + line.join(" | ") + " |\n").join("");
  };

  const copy = async (text, says) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // A page from a file may have no clipboard but this.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    says.textContent = "copied";
    setTimeout(() => { says.textContent = ""; }, 2000);
  };

  const button = (text, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", act);
    return made;
  };

  for (const table of document.querySelectorAll("table.sorts")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, at) => {
      const text = head.textContent;
      head.textContent = "";
      head.append(button(text, () => sort(table, at)));
    });
    const tools = document.createElement("div");
    tools.className = "tools";
    const says = document.createElement("span");
    says.setAttribute("role", "status");
    tools.append(
      button("Copy as CSV", () => copy(csv(table), says)),
      button("Copy as Markdown", () => copy(markdown(table), says)),
      says,
    );
    table.parentElement.before(tools);
  }

  // A report of layers alone has no samples.
  document.getElementById("save")?.append(button("Save all samples as JSON", () => {
    const text = document.getElementById("samples").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "samples.json";
    link.click();
    URL.revokeObjectURL(link.href);
  }));
})();
