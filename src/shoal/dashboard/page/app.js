// The frame of the page: where we are, what the server sends as it changes, and the keys.
import {html, render, useState, useEffect, useReducer, useCallback, get, Dialog, Act} from "./ui.js";
import {Board} from "./board.js";
import {RunPage} from "./run.js";

const here = () => {
  const [, kind, site, run, session] = location.pathname.split("/").map(decodeURIComponent);
  const query = new URLSearchParams(location.search);
  return kind === "run" ? {site, run, session, tab: query.get("tab") ?? "agents", view: query.get("view") ?? "log"} : {};
};
export const address = ({site, run, session, tab, view}) => {
  if (!run) return "/";
  const path = ["", "run", site, run, session].filter((part) => part !== undefined).map(encodeURIComponent).join("/");
  const query = new URLSearchParams({...(tab && tab !== "agents" ? {tab} : {}), ...(session && view && view !== "log" ? {view} : {})});
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

// One stream for the whole page: the browser connects again by itself, and says what it saw last.
function useLive(place) {
  const [state, dispatch] = useReducer((old, action) => (action === "clear" ? {...old, sessions: {}} : keep(old, action)), {runs: {}, sessions: {}});
  const [isOnline, setOnline] = useState(true);
  const query = place.run ? `?${new URLSearchParams({site: place.site, run: place.run})}` : "";
  useEffect(() => {
    dispatch("clear");
    const source = new EventSource(`/api/live${query}`);
    let timer;
    source.addEventListener("changes", (event) => { setOnline(true); dispatch(JSON.parse(event.data)); });
    source.onopen = () => setOnline(true);
    source.onerror = () => {
      setOnline(false);
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(() => location.reload(), 3000);
    };
    return () => { clearTimeout(timer); source.close(); };
  }, [query]);
  return {...state, isOnline};
}

function switchTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}

const KEYS = [["g", "go to the board"], ["n", "start new work"], ["j / k", "choose the next or the one before"], ["Enter", "open what is chosen"],
  ["l / d / i", "log, diff, details of an agent"], ["x", "stop the agent that is open"], ["Esc", "close"], ["t", "light or dark"], ["?", "these keys"]];

function NewWork({sites, site, onClose, go}) {
  const [name, setName] = useState(site ?? sites[0]?.name);
  const [tasks, setTasks] = useState("");
  const [agent, setAgent] = useState("");
  const [pipeline, setPipeline] = useState("");
  const fields = () => ({action: "run", agent, pipeline, tasks: tasks.split("\n").filter((line) => line.trim())});
  const done = (found) => { onClose(); if (found.document?.run) go({site: name, run: found.document.run}); };
  return html`<${Dialog} title="New work" onClose=${onClose}><form class="stack" onSubmit=${(event) => event.preventDefault()}>
    ${sites.length > 1 && html`<label>Repository <select onChange=${(event) => setName(event.target.value)}>
      ${sites.map((each) => html`<option selected=${each.name === name}>${each.name}</option>`)}</select></label>`}
    <label>Tasks, one a line; each gets an agent of its own
      <textarea rows="5" value=${tasks} onInput=${(event) => setTasks(event.target.value)} placeholder="Fix the login test"></textarea></label>
    <label>Agent or persona <input value=${agent} onInput=${(event) => setAgent(event.target.value)} placeholder="claude, codex, …" /></label>
    <p class="or">or</p>
    <label>Pipeline: a file of the repository, or a name in its shoal.yaml
      <input value=${pipeline} onInput=${(event) => setPipeline(event.target.value)} placeholder="review.yaml" /></label>
    <${Act} site=${name} fields=${fields} label="Start" tone="primary" onDone=${done} /></form></${Dialog}>`;
}

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
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "g") go({});
      else if (event.key === "n") setOpen("new");
      else if (event.key === "?") setOpen("keys");
      else if (event.key === "t") switchTheme();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [go]);
  useEffect(() => { document.title = place.run ? `${place.run} – Shoal` : "Shoal"; }, [place.run]);
  const link = (next) => ({href: address(next), onClick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault(); go(next);
  }});
  return html`
    <header class="top"><a class="brand" ...${link({})}><img src="/static/icon.svg" alt="" width="22" height="22" /> Shoal</a>
      <span class="sites">${sites.sites.map((site) => site.name).join(", ")}</span>
      ${!live.isOnline && html`<span class="offline" role="status">not connected; trying again…</span>`}
      <span class="space"></span>
      <button type="button" class="primary" onClick=${() => setOpen("new")}>New work</button>
      <button type="button" class="plain" onClick=${switchTheme} aria-label="Light or dark" title="Light or dark (t)">◐</button>
      <button type="button" class="plain" onClick=${() => setOpen("keys")} aria-label="Keys" title="Keys (?)">?</button></header>
    ${place.run
      ? html`<${RunPage} key=${`${place.site}/${place.run}`} place=${place} live=${live} go=${go} link=${link} />`
      : html`<${Board} runs=${Object.values(live.runs)} hasSites=${sites.sites.length > 1} go=${go} link=${link} />`}
    ${open === "new" && html`<${NewWork} sites=${sites.sites} site=${place.site} go=${go} onClose=${() => setOpen("")} />`}
    ${open === "keys" && html`<${Dialog} title="Keys" onClose=${() => setOpen("")}><dl class="keys">
      ${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></${Dialog}>`}`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
