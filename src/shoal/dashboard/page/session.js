// One agent: what it says and does, what it changed, and what it used; with a message or a stop for it.
import {html, useState, useEffect, useRef, clean, seconds, tone, Status, Usage, Act, Tabs, get, part} from "./ui.js";
import {Diff} from "./diff.js";
import {SessionResources} from "./timeline.js";

const VIEWS = ["log", "diff", "resources", "details"];
const MAX_EVENTS = 3000;
const AT_ONCE = 500;

export function SessionPanel({place, run, row, peers, now, go, link}) {
  const close = {...place, session: undefined};
  const canRetry = run.ended && row.ended && tone(row.status) !== "good";
  return html`<aside class="panel" aria-label=${`Agent ${row.session}`}>
    <header><div><h2>${clean(row.session)} <${Status} status=${row.status} phase=${row.phase} /></h2>
      <p class="facts"><span><b>${seconds(row.duration_seconds ?? Math.max(0, now - row.started_at))}</b></span><${Usage} usage=${row.usage} />
        ${row.agent && html`<span>${clean(row.agent)}</span>`}${row.branch && html`<code>${clean(row.branch)}</code>`}</p></div>
      <a class="plain" aria-label="Close" title="Close (Esc)" ...${link(close)}>✕</a></header>
    ${row.error && html`<p class="error">${clean(row.error)}</p>`}
    ${row.executable.length > 0 && html`<p class="bad" role="note">⚠ It changes files that can run code on your machine: ${clean(row.executable.join(", "))}</p>`}
    ${!row.ended && html`<${Send} place=${place} row=${row} />`}
    ${canRetry && html`<p class="actions"><${Act} site=${place.site} fields=${{action: "retry", run: run.run, target: row.session}} label="Retry" /></p>`}
    <${Tabs} label="Views of this agent" names=${VIEWS} chosen=${place.view} linkTo=${(view) => link({...place, view})} />
    <div class=${`view${place.view === "log" ? " fill" : ""}`} tabindex="0">
    ${place.view === "diff" ? html`<${DiffOf} place=${place} row=${row} peers=${peers} go=${go} />`
      : place.view === "resources" ? html`<${SessionResources} place=${place} row=${row} />`
      : place.view === "details" ? html`<${Details} place=${place} row=${row} />`
      : html`<${Log} place=${place} row=${row} />`}</div></aside>`;
}

function Send({place, row}) {
  const [text, setText] = useState(""), [note, setNote] = useState("");
  const sent = () => { setText(""); setNote("Sent; the agent gets it after its current turn, and the log shows when."); };
  return html`<form class="send" onSubmit=${(event) => event.preventDefault()}>
    ${row.takes_messages ? html`<input aria-label="Message to this agent" placeholder="Message, delivered between turns" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Act} site=${place.site} fields=${() => ({action: "send", session: row.session, text})} label="Send" onDone=${sent} disabled=${!text.trim()} />`
      : html`<span class="dim">This agent takes no messages.</span><span class="space"></span>`}
    <${Act} site=${place.site} fields=${{action: "stop", target: row.session}} label="Stop" tone="danger" title="Stop this agent; its work is kept (x)" />
    ${note && html`<small class="dim" role="status">${note}</small>`}</form>`;
}

function useEvents(place, row) {
  const [events, setEvents] = useState(null);
  const seen = useRef(0), busy = useRef(false), again = useRef(false);
  const load = async () => {
    if (busy.current) { again.current = true; return; }
    busy.current = true;
    try {
      do {
        again.current = false;
        const found = await get(`/api/events/${part(place.site)}/${part(row.session)}?after=${seen.current}`);
        setEvents((old) => (found.length || !old ? [...(old ?? []), ...found].slice(-MAX_EVENTS) : old));
        if (found.length) {
          again.current = again.current || (seen.current > 0 && found.length >= AT_ONCE);
          seen.current = found[found.length - 1].seq;
        }
      } while (again.current);
    } catch { /* the next change asks again */ } finally { busy.current = false; }
  };
  useEffect(() => { load(); }, [row.session, row.version, row.ended]);
  return events;
}

const FILTERS = {everything: () => true, actions: (event) => event.event !== "Output", failures: (event) => event.ok === false || event.stream === "stderr" || event.allowed === false};

function Log({place, row}) {
  const events = useEvents(place, row);
  const box = useRef(null), [follows, setFollows] = useState(true);
  const [filter, setFilter] = useState("everything"), [text, setText] = useState("");
  const shown = (events ?? []).filter(FILTERS[filter]).filter((event) => !text || `${event.text ?? ""} ${event.tool ?? ""} ${event.subject ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  useEffect(() => { if (follows && box.current) box.current.scrollTop = box.current.scrollHeight; }, [events, filter, text, follows]);
  const onScroll = () => setFollows(box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40);
  return html`<div class="tools">${Object.keys(FILTERS).map((name) => html`<button type="button" class="chip" aria-pressed=${filter === name} onClick=${() => setFilter(name)}>${name}</button>`)}
      <input type="search" aria-label="Find in the log" placeholder="Find" value=${text} onInput=${(event) => setText(event.target.value)} />
      ${!follows && html`<button type="button" class="chip" onClick=${() => setFollows(true)}>↓ latest</button>`}</div>
    <div class="log" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Log">
    ${events?.length >= AT_ONCE && html`<p class="dim">Earlier lines: shoal logs ${clean(row.session)}</p>`}
    ${shown.length === 0 && html`<p class="dim">${!events ? "Loading…" : events.length ? "Nothing matches." : row.ended ? "The log is empty, or was removed." : "Nothing yet."}</p>`}
    ${shown.map((event) => html`<${Line} key=${event.seq} event=${event} />`)}</div>`;
}

const ACTS = {began: "started", said: "", denied: "denied", retry: "waits", trouble: "error"};

function Line({event}) {
  switch (event.event) {
    case "Output": return html`<${Entry} event=${event} kind=${event.stream === "stderr" ? "bad" : ""}><${Long} text=${event.text.replace(/\n$/, "")} />${event.dropped > 0 && html` <i>${event.dropped} bytes not kept</i>`}</${Entry}>`;
    case "AgentActed": return event.act === "result"
      ? html`<${Entry} event=${event} kind=${event.ok ? "result" : "bad"}>${event.ok ? "→ " : "✕ "}<${Long} text=${event.text} most=${event.ok ? 3 : 12} /></${Entry}>`
      : html`<${Entry} event=${event} kind=${event.act === "retry" ? "warn" : event.ok ? event.act : "bad"}><b>${event.act === "tool" || event.act === "denied" ? clean(event.tool) : ACTS[event.act] ?? event.act}</b> ${clean(event.text)}${
        event.act === "retry" && event.seconds > 0 ? `; tries again after ${seconds(event.seconds)}` : ""}</${Entry}>`;
    case "AgentStarted": return html`<${Entry} event=${event} kind="dim">process ${event.pid} started</${Entry}>`;
    case "AgentEnded": return html`<${Entry} event=${event} kind="dim">process ended ${event.signal ? `by signal ${event.signal}` : `with exit code ${event.exit_code}`}</${Entry}>`;
    case "PermissionDecided": return event.allowed ? null : html`<${Entry} event=${event} kind="warn">denied: ${clean(event.subject)} (${clean(event.rule)})</${Entry}>`;
    case "AgentMessaged": return html`<${Entry} event=${event} kind="message"><b>${event.is_delivered ? "message" : "message not delivered"} from ${clean(event.by)}</b> ${clean(event.text)}</${Entry}>`;
    default: return null;
  }
}

const Entry = ({event, kind, children}) => html`<div class=${`line entry ${kind}`}><time>${new Date(event.at * 1000).toLocaleTimeString([], {hour12: false})}</time><span>${children}</span></div>`;

// A long text shows its beginning, and the rest on demand.
function Long({text, most = 20}) {
  const lines = clean(text).split("\n");
  if (lines.length <= most) return lines.join("\n");
  return html`${lines.slice(0, most).join("\n")}<details><summary>${lines.length - most} more lines</summary>${lines.slice(most).join("\n")}</details>`;
}

function DiffOf({place, row, peers, go}) {
  const others = peers.filter((peer) => peer.session !== row.session && peer.files_changed > 0);
  return html`<div>${others.length > 0 && html`<label class="compare">Compare with <select onChange=${(event) => go({...place, other: event.target.value || undefined})}>
      <option value="">where it started</option>${others.map((peer) => html`<option value=${peer.session} selected=${peer.session === place.other}>${clean(peer.session)}</option>`)}</select></label>`}
    <${Diff} site=${place.site} query=${{a: row.session, ...(place.other ? {b: place.other} : {})}} stamp=${row.ended ? "ended" : Math.floor(row.version / 20)} /></div>`;
}

function Details({place, row}) {
  const facts = [["step", row.step], ["agent", row.agent], ["adapter", row.adapter], ["attempt", row.attempt], ["worker", row.index], ["branch", row.branch], ["files changed", row.files_changed],
    ...Object.entries(row.usage).map(([name, value]) => [name.replaceAll("_", " "), Number(value.toFixed(4)).toLocaleString("en")])];
  return html`<div class="details">${row.prompt && html`<h3>Task</h3><p class="prompt whole">${clean(row.prompt)}</p>`}
    ${row.contracts.length > 0 && html`<h3>Contracts</h3><ul>${row.contracts.map((check) => html`
      <li class=${check.passed ? "good" : check.warning ? "warn" : "bad"}>${check.passed ? "✓" : "✕"} ${check.type}: ${clean(check.message)}</li>`)}</ul>`}
    ${row.artifacts.length > 0 && html`<h3>Artifacts</h3><ul>${row.artifacts.map((name) => html`
      <li><a href=${`/api/artifact/${part(place.site)}/${part(row.session)}/${name.split("/").map(part).join("/")}`} download>${clean(name)}</a></li>`)}</ul>`}
    <h3>Facts</h3><table><caption class="hidden">Facts</caption><tbody>${facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`
      <tr><th scope="row">${name}</th><td>${clean(value)}</td></tr>`)}</tbody></table></div>`;
}
