// Filters and sorts cases, opens linked cases, and copies commands. Without this script, the page shows
// all cases, or the first 1000, in the order of the run.
"use strict";
(() => {
  const form = document.getElementById("filter");
  const body = document.querySelector("#matrix tbody");
  const heads = [...document.querySelectorAll("#matrix thead th")];
  const more = document.getElementById("more");
  const most = more ? body.rows.length : Infinity;
  const cells = [...(document.getElementById("cells")?.content.children ?? [])];
  const labels = cells.map((cell) => cell.dataset.label);
  const firstRow = body.rows[0];
  // Rows after the first 1000 are created only when they are shown.
  const created = (id, operator, places) => {
    const row = firstRow.cloneNode(true);
    row.dataset.operator = operator;
    row.querySelector("bdi").textContent = id;
    [...row.cells].slice(1).forEach((cell, column) =>
      cell.replaceWith(cells[places[column]].cloneNode(true)));
    return row;
  };
  const rows = [...body.rows].map((row) => ({
    row: () => row,
    operator: row.dataset.operator,
    needs: row.dataset.needs,
    keys: [...row.cells].map((cell, column) =>
      column === 0 ? cell.textContent : cell.dataset.label),
  }));
  const hidden = more ? JSON.parse(more.content.textContent) : { kinds: [], rows: [] };
  for (const [id, kind] of hidden.rows) {
    const [operator, needs, ...places] = hidden.kinds[kind];
    const keys = [id, ...places.map((place) => labels[place])];
    rows.push({ row: () => created(id, operator, places), operator, needs, keys });
  }
  const byCase = new Map();
  rows.forEach((row, place) => {
    row.place = place;
    const reached = row.keys.slice(1).filter((outcome) => outcome && outcome !== "not-run");
    row.differs = new Set(reached).size > 1;
    byCase.set(row.keys[0], row);
  });
  const backends = [...(firstRow?.cells ?? [])].slice(1).map((cell) => cell.dataset.backend);
  const results = [...document.querySelectorAll("main [data-case]")];
  const groups = [...document.querySelectorAll(".cause, .others, .passes")].reverse();
  const operators = [...document.querySelectorAll("#matrix-of-operators tbody tr")];
  const names = ["text", "backend", "operator", "outcome", "needs", "differs", "sort", "show"];
  const state = Object.fromEntries(names.map((name) => [name, ""]));
  let ordered = rows;

  const fitsCase = (row, id) =>
    id.toLowerCase().includes(state.text.toLowerCase()) &&
    (!row || (
      (!state.operator || row.operator === state.operator) &&
      (!state.needs || (row.needs || "none of these").split(" ").includes(state.needs) ||
        (row.needs || "none of these") === state.needs) &&
      (!state.differs || row.differs)));

  const fitsCells = ({ keys }) => {
    const column = backends.indexOf(state.backend);
    const shown = column < 0 ? keys.slice(1) : [keys[column + 1]];
    return !state.outcome ? column < 0 || shown[0] !== "" : shown.includes(state.outcome);
  };

  const filter = () => {
    const found = ordered.filter((row) => fitsCase(row, row.keys[0]) && fitsCells(row));
    body.replaceChildren(...found.slice(0, most).map(({ row }) => row()));
    for (const result of results) {
      const { case: id, backend, label } = result.dataset;
      result.hidden = !fitsCase(byCase.get(id), id) ||
        (state.backend && backend !== state.backend) || (state.outcome && label !== state.outcome);
    }
    for (const group of groups) {
      const inside = [...group.querySelectorAll("[data-case]")];
      group.hidden = inside.length > 0 && inside.every((result) => result.hidden);
    }
    for (const row of operators) {
      row.hidden = Boolean(state.operator) && row.dataset.operator !== state.operator;
    }
    const cut = found.length > most ? `, the first ${most} are shown` : "";
    form.querySelector("output").textContent = `${found.length} of ${rows.length} cases${cut}`;
  };

  const sort = () => {
    const down = state.sort.startsWith("-");
    const column = state.sort === "" ? -1 : Math.abs(parseInt(state.sort, 10));
    const order = (a, b) => a.place - b.place;
    const by = (a, b) => {
      const [x, y] = [a.keys[column] ?? "", b.keys[column] ?? ""];
      const sign = x < y ? -1 : Number(x > y);
      return (down ? -sign : sign) || order(a, b);
    };
    ordered = [...rows].sort(column < 0 ? order : by);
    filter();
    heads.forEach((head, place) => {
      head.ariaSort = place === column ? (down ? "descending" : "ascending") : "none";
    });
  };

  // The filter and the order are part of the address, so that a link leads to the same view.
  const encoded = (value) => encodeURIComponent(value).replace(/%(2F|40|3A)/g, decodeURIComponent);
  const remember = () => {
    const parts = names.filter((name) => state[name]).map((name) => `${name}=${encoded(state[name])}`);
    history.replaceState(null, "", `#${parts.join("&")}`);
  };

  const reveal = (id) => {
    const target = document.getElementById(id);
    if (!target?.matches("[data-case]")) return false;
    for (let outer = target; outer; outer = outer.parentElement) {
      outer.hidden = false;
      if (outer.matches("details")) outer.open = true;
    }
    target.scrollIntoView();
    return true;
  };

  const arrive = () => {
    const hash = location.hash.slice(1);
    if (!hash.includes("=")) {
      reveal(hash);
      return;
    }
    const given = new URLSearchParams(hash);
    for (const name of names) state[name] = given.get(name) ?? "";
    for (const field of form.elements) {
      if (field.type === "checkbox") field.checked = state[field.name] !== "";
      else if (field.name) field.value = state[field.name];
    }
    sort();
    reveal(state.show);
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      state.sort = state.sort === `${column}` ? `-${column}` : `${column}`;
      sort();
      remember();
    });
  });
  form.addEventListener("input", () => {
    for (const field of form.elements) {
      if (field.type === "checkbox") state[field.name] = field.checked ? field.value : "";
      else if (field.name) state[field.name] = field.value;
    }
    state.show = "";
    filter();
    remember();
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  const copy = async (button) => {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) copy(button);
    const link = event.target.closest("a[href^='#']");
    if (link && reveal(link.getAttribute("href").slice(1))) {
      event.preventDefault();
      state.show = link.getAttribute("href").slice(1);
      remember();
    }
  });
  addEventListener("hashchange", arrive);
  // Unfold everything before printing.
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  document.documentElement.classList.add("scripted");
  form.hidden = false;
  filter();
  arrive();
})();
