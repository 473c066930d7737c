// Filter and sort. Without this script the page shows all there is, or of very many cases the first,
// in the order of the run.
"use strict";
(() => {
  const form = document.getElementById("filter");
  const body = document.querySelector("#matrix tbody");
  const heads = [...document.querySelectorAll("#matrix thead th")];
  const more = document.getElementById("more");
  const most = more ? body.rows.length : Infinity;
  const cells = [...(document.getElementById("cells")?.content.children ?? [])];
  const outcomes = cells.map((cell) => cell.dataset.outcome);
  const like = body.rows[0];
  // Of very many rows only those are made that are shown.
  const made = (id, places) => {
    const row = like.cloneNode(true);
    row.querySelector(".name").textContent = id;
    [...row.cells].slice(1).forEach((cell, column) =>
      cell.replaceWith(cells[places[column]].cloneNode(true)));
    return row;
  };
  const rows = [...body.rows].map((row) => ({
    row: () => row,
    keys: [...row.cells].map((cell, column) =>
      column === 0 ? cell.textContent : cell.dataset.outcome),
  }));
  for (const [id, ...places] of more ? JSON.parse(more.content.textContent) : []) {
    const keys = [id, ...places.map((place) => outcomes[place])];
    rows.push({ row: () => made(id, places), keys });
  }
  rows.forEach((row, place) => { row.place = place; });
  const failures = [...document.querySelectorAll(".failure")];
  const state = { text: "", outcome: "", sort: "" };
  let ordered = rows;

  const filter = () => {
    const text = state.text.toLowerCase();
    const fits = (id, outcomes) =>
      id.toLowerCase().includes(text) && (!state.outcome || outcomes.includes(state.outcome));
    const found = ordered.filter(({ keys }) => fits(keys[0], keys.slice(1)));
    body.replaceChildren(...found.slice(0, most).map(({ row }) => row()));
    for (const failure of failures) {
      failure.hidden = !fits(failure.dataset.case, [failure.dataset.outcome]);
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
    ordered = rows.toSorted(column < 0 ? order : by);
    filter();
    heads.forEach((head, place) => {
      head.ariaSort = place === column ? (down ? "descending" : "ascending") : "none";
    });
  };

  // The state stands in the address, so that a view can be sent to somebody.
  const remember = () => {
    const said = Object.entries(state).filter(([, value]) => value);
    history.replaceState(null, "", `#${new URLSearchParams(said)}`);
  };

  const arrive = () => {
    const hash = location.hash.slice(1);
    if (hash.includes("=")) {
      const said = new URLSearchParams(hash);
      for (const name of Object.keys(state)) state[name] = said.get(name) ?? "";
      form.elements.text.value = state.text;
      form.elements.outcome.value = state.outcome;
      sort();
      return;
    }
    const target = document.getElementById(hash);
    if (target?.matches(".failure")) {
      target.open = true;
      target.scrollIntoView();
    }
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
    state.text = form.elements.text.value;
    state.outcome = form.elements.outcome.value;
    filter();
    remember();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", arrive);
  // Paper shows what is folded on a screen.
  addEventListener("beforeprint", () => failures.forEach((failure) => { failure.open = true; }));
  form.hidden = false;
  filter();
  arrive();
})();
