// The frame of the page: where we are, what the server sends as it changes, and the keys.
import {html, render, useState, useEffect, useReducer, useCallback, clean, get, useKeys, Dialog} from "./ui.js";
import {Board} from "./board.js";
import {RunPage} from "./run.js";
import {NewWork} from "./work.js";

const AGAIN_MS = 2000;

const here = () => {
  const [, kind, site, run, session] = location.pathname.split("/").map(decodeURIComponent);
  const query = new URLSearchParams(location.search);
  return kind === "run" ? {site, run, session, tab: query.get("tab") ?? "agents", view: query.get("view") ?? "log", other: query.get("other") ?? undefined} : {};
};
export const address = ({site, run, session, tab, view, other}) => {
  if (!run) return "/";
  const path = ["", "run", site, run, session].filter((part) => part !== undefined).map(encodeURIComponent).join("/");
  const wanted = {tab: tab !== "agents" && tab, view: session && view !== "log" && view, other: session && view === "diff" && other};
  const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
  return query.size ? `${path}?${query}` : path;
};

// Documents by what they are about; the newest holds.
function keep(state, changes) {
  const runs = {...state.runs}, sessions = {...state.sessions};
  for (const {kind, document} of changes) {
    if (kind === "run") runs[`${document.site}/${document.run}`] = document;
    else sessions[document.session] = document;
  }
  return {runs, sessions};
}

// One stream for the whole page. The browser connects again by itself, and says what it saw last; after a refusal we do.
function useLive(place) {
  const [state, dispatch] = useReducer((old, action) => (action === "clear" ? {...old, sessions: {}} : keep(old, action)), {runs: {}, sessions: {}});
  const [isOnline, setOnline] = useState(true);
  const query = place.run ? {site: place.site, run: place.run} : {};
  useEffect(() => {
    let source, timer, last = "";
    const connect = () => {
      source = new EventSource(`/api/live?${new URLSearchParams({...query, after: last})}`);
      source.addEventListener("changes", (event) => { last = event.lastEventId; setOnline(true); dispatch(JSON.parse(event.data)); });
      source.onopen = () => setOnline(true);
      source.onerror = () => {
        setOnline(false);
        if (source.readyState === EventSource.CLOSED) timer = setTimeout(connect, AGAIN_MS);
      };
    };
    dispatch("clear");
    connect();
    return () => { clearTimeout(timer); source.close(); };
  }, [query.site, query.run]);
  return {...state, isOnline};
}

function switchTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

const KEYS = [["g", "go to the board"], ["n", "start new work"], ["j / k", "choose the next or the one before"], ["Enter", "open what is chosen"], ["/", "find"],
  ["1 … 8", "the views of a run"], ["l / d / u / i", "log, diff, resources, details of an agent"], ["x", "stop the agent that is open"], ["Esc", "close"], ["t", "light or dark"], ["?", "these keys"]];

function App() {
  const [place, setPlace] = useState(here());
  const [sites, setSites] = useState({sites: [], version: ""});
  const [open, setOpen] = useState("");
  const live = useLive(place);
  const go = useCallback((next) => { history.pushState(null, "", address(next)); setPlace(here()); }, []);
  useEffect(() => { get("/api/sites").then(setSites, () => {}); }, []);
  useEffect(() => {
    const back = () => setPlace(here());
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  useKeys((event) => {
    if (event.key === "g") go({});
    else if (event.key === "n") setOpen("new");
    else if (event.key === "?") setOpen("keys");
    else if (event.key === "t") switchTheme();
    else return false;
    return true;
  });
  const runs = Object.values(live.runs), asking = runs.filter((run) => run.gates.length).length;
  useEffect(() => { document.title = `${asking ? `(${asking}) ` : ""}${place.run ? `${place.run} – Shoal` : "Shoal"}`; }, [place.run, asking]);
  const link = (next) => ({href: address(next), onClick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault(); go(next);
  }});
  return html`
    <header class="top"><a class="brand" ...${link({})}><img src="/static/icon.svg" alt="" width="22" height="22" /> Shoal</a>
      <nav class="crumbs" aria-label="Where you are">${place.run ? html`<span class="site">/ ${clean(place.site)}</span><span class="clip">/ <a ...${link({site: place.site, run: place.run})}>${clean(place.run)}</a></span>`
        : html`<span class="clip">${clean(sites.sites.map((site) => site.name).join(", "))}</span>`}</nav>
      ${!live.isOnline && html`<span class="offline" role="status" title="If shoal serve was started again, open the new link that it printed.">Not connected; trying again…</span>`}
      <span class="space"></span>
      <button type="button" class="primary" title="New work (n)" onClick=${() => setOpen("new")}>New work</button>
      <button type="button" class="plain" onClick=${switchTheme} aria-label="Light or dark" title="Light or dark (t)">◐</button>
      <button type="button" class="plain" onClick=${() => setOpen("keys")} aria-label="Keys" title="Keys (?)">?</button></header>
    ${place.run
      ? html`<${RunPage} key=${`${place.site}/${place.run}`} place=${place} live=${live} go=${go} link=${link} />`
      : html`<${Board} runs=${runs} sites=${sites.sites.map((site) => site.name)} go=${go} link=${link} onNew=${() => setOpen("new")} />`}
    ${open === "new" && html`<${NewWork} sites=${sites.sites} site=${place.site} go=${go} onClose=${() => setOpen("")} />`}
    ${open === "keys" && html`<${Dialog} title="Keys" onClose=${() => setOpen("")}><dl class="keys">
      ${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></${Dialog}>`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
