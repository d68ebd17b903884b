"use strict";
(() => {
  const form = document.getElementById("filter");
  const query = document.getElementById("query");
  const shown = document.getElementById("shown");
  const none = document.getElementById("none");
  const buttons = [...form.querySelectorAll("button")];
  const rows = [...document.querySelectorAll(".outcomes tbody tr")];
  let outcome = "";

  // The state is in the address, so that a filtered view can be sent to somebody.
  const read = () => {
    const hash = location.hash.slice(1);
    if (!hash.includes("=")) {
      if (hash.startsWith("t-")) reveal(hash);
      return;
    }
    const state = new URLSearchParams(hash);
    const wanted = state.get("outcome") || "";
    outcome = buttons.some((button) => button.dataset.outcome === wanted) ? wanted : "";
    query.value = state.get("q") || "";
    apply();
  };

  const write = () => {
    const state = new URLSearchParams();
    if (outcome) state.set("outcome", outcome);
    if (query.value) state.set("q", query.value);
    const hash = state.toString();
    history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  };

  const apply = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = (!outcome || row.dataset.outcome === outcome)
        && words.every((word) => row.dataset.search.includes(word));
      row.hidden = !fits;
      document.getElementById("t-" + row.dataset.id).hidden = !fits;
      count += fits;
    }
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.outcome === outcome));
    }
    shown.textContent = count + " of " + rows.length + " shown";
    none.hidden = count > 0;
  };

  // A link to a transform must work also while the filter hides it.
  const reveal = (id) => {
    const article = document.getElementById(id);
    if (!article) return;
    if (article.hidden) {
      outcome = "";
      query.value = "";
      apply();
    }
    for (const fold of article.querySelectorAll("details")) fold.open = true;
    article.scrollIntoView();
  };

  for (const button of buttons) {
    button.addEventListener("click", () => {
      outcome = button.dataset.outcome;
      apply();
      write();
    });
  }
  query.addEventListener("input", () => {
    apply();
    write();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("folds").addEventListener("click", (event) => {
    const fold = event.target.dataset.fold;
    if (!fold) return;
    for (const details of document.querySelectorAll("details")) details.open = fold === "open";
  });
  addEventListener("hashchange", read);
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });

  form.hidden = false;
  document.getElementById("folds").hidden = !document.querySelector("details");
  apply();
  read();
})();
