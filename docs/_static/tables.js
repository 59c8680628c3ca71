// On phones, rows of wide tables become cards (site.css): each cell carries its column's heading.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".bd-article table:has(td:nth-child(4))")) {
    const headings = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.cells].forEach((cell, i) => {
        if (headings[i]) cell.dataset.column = headings[i];
      });
  }
});
