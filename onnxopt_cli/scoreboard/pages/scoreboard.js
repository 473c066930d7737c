"use strict";
// The filter of the matrix; its state is part of the address: index.html#text=conv&rows=mixed
const form = document.getElementById("filter");
if (form) {
  const rows = [...document.querySelectorAll("#operators tbody tr")];
  const apply = () => {
    const text = form.text.value.trim().toLowerCase(), kind = form.rows.value;
    let shown = 0;
    for (const row of rows) {
      const named = row.cells[0].textContent.toLowerCase().includes(text);
      const failing = [...row.cells].slice(1).some((cell) => /^(some|zero)$/.test(cell.className));
      const wanted = kind === "failing" ? failing : kind === "mixed" ? row.classList.contains("mixed") : true;
      row.hidden = !(named && wanted);
      shown += !row.hidden;
    }
    form.shown.value = `${shown} of ${rows.length} rows`;
  };
  const read = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    form.text.value = state.get("text") || "";
    const kind = state.get("rows") || "";
    form.rows.value = [...form.rows.options].some((option) => option.value === kind) ? kind : "";
    apply();
  };
  form.addEventListener("input", () => {
    const state = new URLSearchParams();
    if (form.text.value) state.set("text", form.text.value);
    if (form.rows.value) state.set("rows", form.rows.value);
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname);
    apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", read);
  form.hidden = false;
  read();
}
// The heading of a case links to the case, so that its address can be copied.
for (const section of document.querySelectorAll(".cases > section")) {
  const heading = section.querySelector("h2"), link = document.createElement("a");
  link.href = `#${section.id}`;
  link.append(...heading.childNodes);
  heading.append(link);
}
