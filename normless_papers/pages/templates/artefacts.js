"use strict";
(() => {
  const form = document.querySelector("form.filters");
  if (!form) return;
  const status = form.querySelector("[role=status]");
  const cards = [...document.querySelectorAll("article")].map((article) => ({
    article,
    details: article.querySelector("details"),
    results: [...article.querySelectorAll(".result")],
    badges: [...article.querySelectorAll(".badges .badge")],
    text: [...article.querySelectorAll("[data-words]")].map((part) => part.textContent).join(" ").toLowerCase(),
  }));
  const parts = [...document.querySelectorAll(".part")];

  const show = () => {
    const asked = Object.fromEntries(new FormData(form));
    const words = asked.words.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { article, results, badges, text } of cards) {
      const fits = results.map(({ dataset }) =>
        (!asked.verdict || dataset.verdict === asked.verdict) && (!asked.budget || dataset.budget === asked.budget));
      results.forEach((result, i) => { result.hidden = !fits[i]; badges[i].hidden = !fits[i]; });
      article.hidden = !(fits.includes(true)
        && (!asked.kind || article.dataset.kind === asked.kind)
        && words.every((word) => text.includes(word)));
      shown += !article.hidden;
    }
    const filtered = Object.values(asked).some(Boolean);
    for (const part of parts) part.hidden = filtered && !part.querySelector("article:not([hidden])");
    const said = `${shown} of ${cards.length} artefacts`;
    if (status.textContent !== said) status.textContent = said;
  };

  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest("[hidden]")) { form.reset(); show(); }
    const details = target.matches("article") && target.querySelector("details");
    if (details) details.open = true;
    target.scrollIntoView();
    if (details) details.querySelector("summary").focus({ preventScroll: true });
  };

  const every = (open) => cards.forEach(({ article, details }) => { if (!article.hidden) details.open = open; });
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of closed) details.open = false; });
  addEventListener("hashchange", follow);
  // A link to where one is already changes nothing, yet what it leads to may be closed by now.
  addEventListener("click", ({ target }) => {
    const link = target.closest("a[href^='#']");
    if (link && link.hash === location.hash) follow();
  });
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(show));
  form.querySelector("[data-open]").addEventListener("click", () => every(true));
  form.querySelector("[data-close]").addEventListener("click", () => every(false));
  form.hidden = false;
  show();
  follow();
})();
