// One run: its agents as they work, its plan, time, overlaps and merge, and whichever agent is open.
import {html, useState, useEffect, useMemo, clean, seconds, words, tokens, cost, Status, Usage, Act, useNow, useLoad, get} from "./ui.js";
import {Gate} from "./board.js";
import {Graph, Timeline, Matrix} from "./charts.js";
import {Diff, SessionPanel} from "./session.js";

const TABS = ["agents", "plan", "timeline", "overlaps", "diff", "merge", "report"];

export function RunPage({place, live, go, link}) {
  const key = `${place.site}/${place.run}`;
  const card = live.runs[key];
  const [page, setPage] = useState(null);
  const [error, setError] = useState("");
  const stamp = card ? `${card.status} ${card.workers} ${card.gates.length} ${card.overlaps} ${card.merged} ${Object.keys(card.deliveries).length} ${card.good}` : "";
  useEffect(() => {
    get(`/api/run/${encodeURIComponent(place.site)}/${encodeURIComponent(place.run)}`).then(setPage, (raised) => setError(raised.message));
  }, [key, stamp]);
  const run = useMemo(() => (page ? {...page, ...(card ?? {})} : null), [page, card]);
  const sessions = useMemo(() => {
    const known = Object.fromEntries((page?.sessions ?? []).map((row) => [row.session, row]));
    for (const row of Object.values(live.sessions)) if (row.run === place.run) known[row.session] = row;
    return Object.values(known).sort((one, other) => one.started_at - other.started_at);
  }, [page, live.sessions]);
  const now = useNow(run !== null && !run.ended);
  useKeys(place, sessions, go);
  if (error) return html`<main class="empty"><h1>${clean(place.run)}</h1><p class="error">${clean(error)}</p></main>`;
  if (!run) return html`<main class="empty"><p>Loading…</p></main>`;
  const session = sessions.find((row) => row.session === place.session);
  return html`<main class=${`run${session ? " split" : ""}`}><div class="body">
    <${Head} run=${run} now=${now} />
    ${run.gates.map((gate) => html`<${Gate} key=${gate.step} run=${run} gate=${gate} />`)}
    <nav class="tabs" aria-label="Views of this run">${TABS.map((tab) => html`
      <a ...${link({...place, tab})} aria-current=${place.tab === tab ? "page" : undefined}>${tab}</a>`)}</nav>
    <${Tab} place=${place} run=${run} sessions=${sessions} now=${now} go=${go} link=${link} /></div>
    ${session && html`<${SessionPanel} key=${session.session} place=${place} run=${run} row=${session} now=${now} go=${go} link=${link} />`}</main>`;
}

function Tab({place, run, sessions, now, go, link}) {
  const open = (session) => go({...place, session});
  switch (place.tab) {
    case "plan": return html`<${Graph} run=${run} sessions=${sessions} onOpen=${open} />`;
    case "timeline": return html`<${Timeline} place=${place} run=${run} sessions=${sessions} now=${now} onOpen=${open} />`;
    case "overlaps": return html`<${Matrix} run=${run} sessions=${sessions} onOpen=${open} />`;
    case "diff": return html`<${Diff} site=${place.site} query=${{run: run.run}} stamp=${run.good} />`;
    case "merge": return html`<${Merge} run=${run} />`;
    case "report": return html`<${Report} run=${run} />`;
    default: return html`<${Agents} place=${place} run=${run} sessions=${sessions} now=${now} link=${link} />`;
  }
}

function Head({run, now}) {
  const took = run.ended ? run.duration_seconds : Math.max(0, now - run.started_at);
  const isStopped = ["interrupted", "cancelled"].includes(run.status);
  return html`<header class="head"><h1>${clean(run.run)} <${Status} status=${run.status} /></h1>
    <p class="facts"><span>${run.good} of ${run.workers} agents succeeded</span><span>${seconds(took)}</span>
      ${run.seconds_left > 0 && !run.ended && html`<span>about ${seconds(run.seconds_left)} left</span>`}<${Usage} usage=${run.usage} />
      <span title="what the agents are confined by">sandbox ${run.wall}</span><span>base ${String(run.base).slice(0, 8)}</span></p>
    <p class="actions">${!run.ended && html`
      <${Act} site=${run.site} fields=${{action: "pause", run: run.run}} label="Pause" title="Start no more agents" />
      <${Act} site=${run.site} fields=${{action: "continue", run: run.run}} label="Continue" />
      <${Act} site=${run.site} fields=${{action: "stop", target: run.run}} label="Stop" tone="danger" confirm="Stop all agents of this run? Their work is kept." />`}
      ${run.ended && isStopped && html`<${Act} site=${run.site} fields=${{action: "resume", run: run.run}} label="Resume" tone="primary" />`}
      ${run.ended && run.good < run.workers && !isStopped && html`<${Act} site=${run.site} fields=${{action: "retry", run: run.run}} label="Retry failed" />`}</p>
    ${run.waiting && html`<p class="warn" role="status">waiting: ${clean(run.waiting)}</p>`}
    ${run.error && html`<p class="error">${clean(run.error)}</p>`}
    ${run.notes.length > 0 && html`<details><summary>${run.notes.length} ${run.notes.length === 1 ? "note" : "notes"}</summary>
      <ul>${run.notes.map((note) => html`<li>${clean(note)}</li>`)}</ul></details>`}</header>`;
}

function Agents({place, run, sessions, now, link}) {
  const overlapping = new Set(run.overlap_pairs.flatMap((pair) => pair.sessions));
  const shown = sessions.filter((row) => !row.discarded);
  const queued = Math.max(0, run.workers - new Set(shown.map((row) => `${row.step} ${row.index}`)).size);
  return html`<div class="scroll"><table class="agents"><caption class="hidden">Agents</caption><thead><tr><th>agent</th><th>state</th><th>time</th>
      <th>last action</th><th class="number">tokens</th><th class="number">cost</th><th class="number">files</th></tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${row.session} class=${row.session === place.session ? "chosen" : ""}>
      <td><a ...${link({...place, session: row.session})}>${clean(row.session)}</a>${row.attempt > 1 && html` <small>attempt ${row.attempt}</small>`}
        <div class="prompt">${clean(row.prompt)}</div></td>
      <td><${Status} status=${row.status} phase=${row.phase} />${row.limit && html`<small> ${row.limit}</small>`}</td>
      <td class="number">${seconds(row.duration_seconds ?? Math.max(0, now - row.started_at))}</td>
      <td class=${row.last_ok ? "last" : "last bad"}>${clean(row.ended ? row.error ?? "" : row.last)}</td>
      <td class="number">${tokens(row.usage) === "0" ? "" : tokens(row.usage)}</td><td class="number">${cost(row.usage)}</td>
      <td class="number">${row.files_changed ?? (row.edited || "")}${overlapping.has(row.session) && html` <span class="warn" title="changed files that another agent changed too">∩</span>`}
        ${row.executable.length > 0 && html` <span class="bad" title="changes files that can run code on your machine">⚠</span>`}</td></tr>`)}</tbody></table>
    ${queued > 0 && html`<p class="more">${queued} queued</p>`}</div>`;
}

function Merge({run}) {
  const [into, setInto] = useState("");
  const [strategy, setStrategy] = useState("review");
  const [verify, setVerify] = useState("");
  const [allow, setAllow] = useState(false);
  const [count, setCount] = useState(0);
  const preview = useLoad(`/api/preview/${encodeURIComponent(run.site)}/${encodeURIComponent(run.run)}`, `${run.good} ${run.merged} ${count}`);
  const seen = preview.value?.document;
  const done = () => setCount(count + 1);
  return html`<section class="merge"><h2>Preview</h2>
    ${preview.error && html`<p class="error">${clean(preview.error)}</p>`}${preview.value && !preview.value.document && html`<p>${clean(preview.value.error)}</p>`}
    ${!preview.value && !preview.error && html`<p>Looking…</p>`}
    ${seen && html`<${Preview} seen=${seen} />`}
    <form class="stack" onSubmit=${(event) => event.preventDefault()}>
      <label>Strategy <select onChange=${(event) => setStrategy(event.target.value)}>
        ${["review", "auto", "squash", "rebase", "octopus"].map((name) => html`<option selected=${name === strategy}>${name}</option>`)}</select></label>
      <label>Verify with a command on the combined work <input value=${verify} placeholder="pytest -q" onInput=${(event) => setVerify(event.target.value)} /></label>
      <label>Deliver into your branch; empty: only prepare shoal/${clean(run.run)} <input value=${into} placeholder="main" onInput=${(event) => setInto(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${allow} onChange=${(event) => setAllow(event.target.checked)} /> Also merge files that can run code on my machine</label>
      <p class="actions"><${Act} site=${run.site} label=${into ? "Merge and deliver" : "Merge"} tone="primary" onDone=${done}
          confirm=${into ? `Move your branch ${into} to the merged work?` : ""}
          fields=${() => ({action: "merge", run: run.run, into, strategy, verify, allow_executable_config: allow})} />
        ${run.merge && html`<${Act} site=${run.site} label="Undo" tone="danger" fields=${{action: "undo", run: run.run}} onDone=${done} confirm="Take this run out of the merge again?" />`}</p></form>
    ${run.merge && html`<${LastMerge} merge=${run.merge} />`}</section>`;
}

function Preview({seen}) {
  const clashing = new Set(seen.clashes.flatMap((clash) => clash.sessions));
  if (!seen.sessions.length) return html`<p class="dim">There is no work to merge.</p>`;
  return html`<p>${seen.sessions.length - clashing.size} of ${seen.sessions.length} sessions merge cleanly${seen.whole ? "" : "; of so many, not every pair was tried"}.</p>
    ${seen.clashes.map((clash) => html`<p class="warn">${clash.sessions.map(clean).join(" and ")} conflict: ${
      clean([...new Set(clash.conflicts.flatMap((conflict) => conflict.paths))].join(", "))}</p>`)}`;
}

function LastMerge({merge}) {
  const sent = merge.delivery;
  return html`<h2>Last merge</h2><p>${merge.commit ? html`<code>${clean(merge.branch)}</code> at ${merge.commit.slice(0, 8)}` : "Nothing is merged."}</p>
    ${sent && html`<p>${clean(sent.into)}: <${Status} status=${sent.status} /> ${clean(sent.message)}</p>`}
    ${[merge.base_fault, merge.branch_fault].filter(Boolean).map((fault) => html`<p class="error">${clean(fault)}</p>`)}
    <${Results} rows=${merge.results} />`;
}

const Results = ({rows}) => rows.length > 0 && html`<table><thead><tr><th>session</th><th>result</th><th>why</th></tr></thead><tbody>
  ${rows.map((row) => html`<tr><td>${clean(row.session)}</td><td><${Status} status=${row.status} /></td>
    <td>${clean(row.message)}${(row.conflicts ?? []).map((conflict) => html`<div>${conflict.kind}: ${clean(conflict.paths.join(", "))}${
      conflict.partners.length > 0 ? ` with ${clean(conflict.partners.join(", "))}` : ""}</div>`)}</td></tr>`)}</tbody></table>`;

function Report({run}) {
  const report = useLoad(`/api/report/${encodeURIComponent(run.site)}/${encodeURIComponent(run.run)}`, run.status + run.good);
  return html`<pre class="report" tabindex="0">${report.value ? clean(JSON.stringify(report.value, null, 2)) : clean(report.error ?? "Loading…")}</pre>`;
}

function useKeys(place, sessions, go) {
  useEffect(() => {
    const key = (event) => {
      if (event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
      const at = sessions.findIndex((row) => row.session === place.session);
      const views = {l: "log", d: "diff", i: "details"};
      if (event.key === "j" || event.key === "k") {
        const next = sessions[Math.min(sessions.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))];
        if (next) go({...place, session: next.session});
      } else if (event.key === "Escape" && place.session) go({...place, session: undefined});
      else if (views[event.key] && place.session) go({...place, view: views[event.key]});
      else if (event.key === "x" && place.session) document.querySelector(".panel button.danger")?.click();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [place, sessions]);
}
