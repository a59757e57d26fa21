// Small parts that every view uses. Whatever an agent wrote becomes a text node: nothing here makes markup of it.
export * from "./vendor/htm-preact.js";
import {html, useState, useEffect, useRef} from "./vendor/htm-preact.js";

// Bytes that would steer a terminal or reorder a line are shown, not obeyed.
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
export const clean = (text) =>
  String(text ?? "").replace(CONTROL, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);

export const seconds = (value) => {
  if (value === null || value === undefined) return "";
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return value < 10 ? `${Math.max(0, value).toFixed(1)} s` : `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, "0")} min`;
};
export const tokens = (usage) => {
  const total = (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
  return total < 1000 ? `${total}` : total < 1e6 ? `${(total / 1e3).toFixed(1)}k` : `${(total / 1e6).toFixed(2)}M`;
};
export const cost = (usage) => (usage?.cost_usd ? `$${usage.cost_usd.toFixed(usage.cost_usd < 1 ? 3 : 2)}` : "");
export const ago = (at) => {
  const passed = Date.now() / 1000 - at;
  return passed < 60 ? "just now" : passed < 3600 ? `${Math.floor(passed / 60)} min ago`
    : passed < 86400 ? `${Math.floor(passed / 3600)} h ago` : `${Math.floor(passed / 86400)} d ago`;
};

const TONES = {
  succeeded: "good", no_changes: "good", merged: "good", delivered: "good", failed: "bad", timed_out: "bad", over_limit: "bad",
  interrupted: "warn", degraded: "warn", conflicts: "warn", held: "warn", paused: "warn", waiting: "warn", "rate limit": "warn", retrying: "warn", running: "live",
  "set-up": "live", sealing: "live", verifying: "live", merge_ready: "good", pending: "dim", cancelled: "dim", skipped: "dim",
};
export const tone = (status) => TONES[status] ?? "dim";
export const words = (status) => String(status ?? "").replaceAll("_", " ");
export const Status = ({status, phase, isPill}) => {
  const shown = phase && status === "running" ? phase : status;
  return html`<span class=${`status ${tone(shown)}${isPill ? " pill" : ""}`}>${words(shown)}</span>`;
};

// How far a run is, as a bar of its agents.
export function Bar({run}) {
  const rest = Math.max(0, run.workers - run.good - run.bad - run.running);
  const parts = [["good", run.good, "succeeded"], ["bad", run.bad, "failed"], ["live", run.running, "working"], ["rest", rest, "stopped or never started"], ["rest", run.queued, "queued"]].filter(([, count]) => count > 0);
  return html`<div class="bar" role="img" aria-label=${parts.map(([, count, name]) => `${count} ${name}`).join(", ") || "no agents yet"}>
    ${parts.map(([name, count]) => html`<i class=${name} style=${{flexGrow: count}}></i>`)}</div>`;
}

// Which of many rows can be seen, so that only those are drawn.
export function useRows(box, count, high) {
  const [range, setRange] = useState([0, 60]);
  useEffect(() => {
    if (count <= 80) return undefined;
    let asked = 0;
    const look = () => {
      asked = 0;
      if (!box.current) return;
      const first = Math.max(0, Math.floor(-box.current.getBoundingClientRect().top / high) - 10);
      const next = [first, first + Math.ceil(innerHeight / high) + 20];
      setRange((old) => (old[0] === next[0] && old[1] === next[1] ? old : next));
    };
    const later = () => { asked ||= requestAnimationFrame(look); };
    look();
    addEventListener("scroll", later, {passive: true, capture: true});
    addEventListener("resize", later);
    return () => { removeEventListener("scroll", later, {capture: true}); removeEventListener("resize", later); cancelAnimationFrame(asked); };
  }, [count, high]);
  return count <= 80 ? [0, count] : [Math.min(range[0], count), Math.min(range[1], count)];
}

export function useWidth(limit) {
  const [isNarrow, setNarrow] = useState(() => matchMedia(limit).matches);
  useEffect(() => {
    const query = matchMedia(limit), change = () => setNarrow(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, [limit]);
  return isNarrow;
}

// Asks for what some sessions did or used, those that are seen, and again while they work.
export function useOfSessions(kind, place, rows) {
  const [known, setKnown] = useState({});
  const stamps = useRef({}), wanted = useRef(rows);
  wanted.current = rows;
  useEffect(() => {
    let isCurrent = true, timer;
    const load = async () => {
      const stale = wanted.current.filter((row) => stamps.current[row.session] !== (row.ended ? "ended" : row.version)).slice(0, 50);
      if (stale.length) {
        const path = `/api/${kind}/${encodeURIComponent(place.site)}/${encodeURIComponent(place.run)}`;
        const found = await get(`${path}?sessions=${stale.map((row) => encodeURIComponent(row.session)).join()}`).catch(() => null);
        if (!isCurrent) return;
        if (found) {
          for (const row of stale) stamps.current[row.session] = row.ended ? "ended" : row.version;
          setKnown((old) => ({...old, ...found}));
        }
      }
      timer = setTimeout(load, stale.length ? 1000 : 300);
    };
    load();
    return () => { isCurrent = false; clearTimeout(timer); };
  }, [kind, place.site, place.run]);
  return known;
}

const isTyping = (event) => event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey;

// Keys of a view: *act* returns whether the key means something there. It is always the one of the last drawing.
export function useKeys(act) {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const key = (event) => { if (!isTyping(event) && latest.current(event)) event.preventDefault(); };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
}

// The views of a page, each with an address of its own.
export function Tabs({label, names, counts, chosen, linkTo}) {
  const box = useRef(null);
  useEffect(() => {
    const tab = box.current?.querySelector("[aria-current]");
    if (tab) box.current.scrollLeft = tab.offsetLeft - box.current.offsetLeft - 40;
  }, [chosen]);
  return html`<nav class="tabs" aria-label=${label} ref=${box}>${names.map((name) => html`
    <a ...${linkTo(name)} aria-current=${chosen === name ? "page" : undefined}>${name}${counts?.[name] > 0 && html` <span class="count">${counts[name]}</span>`}</a>`)}</nav>`;
}

export const part = encodeURIComponent;

// A clock that ticks once a second, for those views in which something runs.
export function useNow(isRunning) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    if (!isRunning) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [isRunning]);
  return now;
}

export async function get(path) {
  const answer = await fetch(path, {headers: {accept: "application/json"}});
  const found = await answer.json().catch(() => ({error: `the server answered ${answer.status}`}));
  if (!answer.ok) throw Object.assign(new Error(found.error ?? `the server answered ${answer.status}`), {isMissing: answer.status === 404});
  return found;
}

export async function act(site, fields) {
  const answer = await fetch(`/api/act/${encodeURIComponent(site)}`, {
    method: "POST", headers: {"content-type": "application/json", "x-shoal": "1"}, body: JSON.stringify(fields),
  });
  const found = await answer.json().catch(() => ({error: `the server answered ${answer.status}`}));
  // 4 is no failure: the command did its work, and left something for a person.
  if (!answer.ok || (found.code !== 0 && found.code !== 4)) throw new Error(found.error || `it ended with ${found.code}`);
  return found;
}

export function useLoad(path, again) {
  const [state, setState] = useState({});
  useEffect(() => {
    let isCurrent = true;
    if (path) get(path).then((value) => isCurrent && setState({value}), (error) => isCurrent && setState({error: error.message}));
    return () => { isCurrent = false; };
  }, [path, again]);
  return state;
}

// A button that does something once, says what went wrong, and cannot be pressed twice meanwhile.
export function Act({site, fields, label, title, tone: kind, confirm, onDone, disabled}) {
  const [state, setState] = useState({});
  const press = async () => {
    if (confirm && !window.confirm(confirm)) return;
    setState({busy: true});
    try {
      const found = await act(site, typeof fields === "function" ? fields() : fields);
      setState({});
      onDone?.(found);
    } catch (error) { setState({error: error.message}); }
  };
  return html`<span class="act"><button type="button" class=${kind ?? ""} title=${title ?? ""} disabled=${state.busy || disabled}
    onClick=${press}>${state.busy ? "…" : label}</button>${state.error && html`<span class="error" role="alert">${clean(state.error)}</span>`}</span>`;
}

export const Usage = ({usage}) => {
  const parts = [tokens(usage) !== "0" && [tokens(usage), " tokens"], cost(usage) && [cost(usage), ""]].filter(Boolean);
  return parts.map(([value, unit]) => html`<span><b>${value}</b>${unit}</span>`);
};

export function Dialog({title, onClose, children}) {
  const box = useRef(null);
  useEffect(() => { box.current?.showModal?.(); }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose} onCancel=${onClose}>
    <header><h2>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>${children}</dialog>`;
}
