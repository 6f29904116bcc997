"use strict";
// Sorting and filtering of tables, and details that open where a link leads. The page says everything without it.
(function () {
  function valueOf(row, column) {
    var cell = row.cells[column];
    var given = cell.getAttribute("data-v");
    var text = given === null ? cell.textContent.trim() : given;
    var number = text === "" ? NaN : Number(text);
    return isNaN(number) ? text : number;
  }

  function compare(a, b, sign) {
    // What has no value stands last, whichever way the table is sorted.
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function makeSortable(table) {
    var heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", function () {
        var up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        var body = table.tBodies[0];
        Array.from(body.rows)
          .map(function (row, i) { return { row: row, i: i, value: valueOf(row, column) }; })
          .sort(function (a, b) { return compare(a.value, b.value, up ? 1 : -1) || a.i - b.i; })
          .forEach(function (item) { body.appendChild(item.row); });
      });
    });
  }

  function makeFilter(input) {
    var name = input.getAttribute("data-filter");
    var rows = Array.from(document.getElementById(name).tBodies[0].rows);
    var count = document.querySelector('[data-count="' + name + '"]');
    input.closest(".filter").hidden = false;
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var shown = 0;
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        if (!row.hidden) shown += 1;
      });
      count.textContent = shown + " of " + rows.length + " rows";
    });
  }

  function openTarget() {
    var target = location.hash && document.getElementById(location.hash.slice(1));
    for (var box = target && target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    if (target && target.closest("details")) {
      target.scrollIntoView();
      target.focus({ preventScroll: true });
    }
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("input[data-filter]").forEach(makeFilter);
  window.addEventListener("hashchange", openTarget);
  openTarget();
  // On paper nothing can be opened; how each number was made stays in the file.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details:not(.evidence)").forEach(function (box) {
      if (!box.closest(".evidence")) box.open = true;
    });
  });
})();
