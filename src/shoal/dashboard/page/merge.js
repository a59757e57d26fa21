// Bring the work of a run together: a preview, what to take, how, and what came of it.
import {html, useState, clean, Status, Act, useLoad, part} from "./ui.js";

const STRATEGIES = {review: "merge what is clean, leave conflicts to you", auto: "merge, and resolve conflicts by their rules", squash: "one commit for each agent", rebase: "one line of commits", octopus: "all at once, or nothing"};

export function Merge({run, sessions}) {
  const [into, setInto] = useState(""), [strategy, setStrategy] = useState("review"), [verify, setVerify] = useState("");
  const [allow, setAllow] = useState(false), [count, setCount] = useState(0), [out, setOut] = useState(new Set());
  const preview = useLoad(`/api/preview/${part(run.site)}/${part(run.run)}`, `${run.good} ${run.merged} ${count}`);
  const seen = preview.value?.document;
  const chosen = (seen?.sessions ?? []).filter((name) => !out.has(name));
  const flip = (name) => setOut((old) => { const next = new Set(old); if (!next.delete(name)) next.add(name); return next; });
  const done = () => setCount(count + 1);
  const fields = () => ({action: "merge", run: run.run, into, strategy, verify, allow_executable_config: allow, sessions: out.size ? chosen : []});
  return html`<section class="merge"><div class="box"><h2>Preview</h2>
    ${preview.error && html`<p class="error">${clean(preview.error)}</p>`}${preview.value && !seen && html`<p>${clean(preview.value.error)}</p>`}
    ${!preview.value && !preview.error && html`<p class="dim">Loading…</p>`}
    ${seen && html`<${Preview} seen=${seen} rows=${Object.fromEntries(sessions.map((row) => [row.session, row]))} out=${out} flip=${flip} />`}
    ${run.merge && html`<${LastMerge} merge=${run.merge} />`}</div>
    <form class="box stack" onSubmit=${(event) => event.preventDefault()}><h2>Merge</h2>
      <label>Strategy <select onChange=${(event) => setStrategy(event.target.value)}>
        ${Object.keys(STRATEGIES).map((name) => html`<option value=${name} selected=${name === strategy}>${name}</option>`)}</select><small>${STRATEGIES[strategy]}</small></label>
      <label>Verify <small>a command that the combined work must pass</small><input value=${verify} placeholder="pytest -q" onInput=${(event) => setVerify(event.target.value)} /></label>
      <label>Deliver into <small>a branch of yours; empty: only prepare <code>shoal/${clean(run.run)}</code></small><input value=${into} placeholder="main" onInput=${(event) => setInto(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${allow} onChange=${(event) => setAllow(event.target.checked)} /> <span>Also merge files that can run code on my machine</span></label>
      <p class="actions"><${Act} site=${run.site} label=${into ? "Merge and deliver" : "Merge"} tone="primary" onDone=${done} disabled=${seen && !chosen.length}
          confirm=${into ? `Move your branch ${into} to the merged work?` : ""} fields=${fields} />
        ${run.merge && html`<${Act} site=${run.site} label="Undo" tone="danger" fields=${{action: "undo", run: run.run}} onDone=${done} confirm="Take this run out of the merge again?" />`}</p></form></section>`;
}

function Preview({seen, rows, out, flip}) {
  const rivals = new Map();
  for (const clash of seen.clashes) for (const name of clash.sessions) rivals.set(name, [...(rivals.get(name) ?? []), ...clash.sessions.filter((other) => other !== name)]);
  const files = new Map();
  for (const clash of seen.clashes) for (const path of clash.conflicts.flatMap((conflict) => conflict.paths)) files.set(path, new Set([...(files.get(path) ?? []), ...clash.sessions]));
  if (!seen.sessions.length) return html`<p class="dim">There is no work to merge.</p>`;
  return html`<p>${seen.sessions.length - rivals.size} of ${seen.sessions.length} sessions merge cleanly${seen.whole === false ? "; of so many, not every pair was tried" : ""}.</p>
    ${[...files].map(([path, who]) => html`<p class="warn">In <code>${clean(path)}</code>, ${who.size} agents conflict.</p>`)}
    <table><thead><tr><th><span class="hidden">Take it</span></th><th>Agent</th><th class="number">Files</th><th>Conflicts with</th></tr></thead><tbody>${seen.sessions.map((name) => html`<tr key=${name}>
      <td><input type="checkbox" aria-label=${`Merge ${clean(name)}`} checked=${!out.has(name)} onChange=${() => flip(name)} /></td>
      <td>${clean(name)}${rows[name]?.executable.length > 0 && html` <span class="tag bad" title=${clean(rows[name].executable.join("\n"))}>⚠ runs code</span>`}<div class="prompt">${clean(rows[name]?.prompt)}</div></td>
      <td class="number">${rows[name]?.files_changed ?? ""}</td>
      <td class="warn" title=${clean((rivals.get(name) ?? []).join("\n"))}>${rivals.get(name)?.length > 2 ? `${rivals.get(name).length} others` : clean((rivals.get(name) ?? []).join(", "))}</td></tr>`)}</tbody></table>`;
}

function LastMerge({merge}) {
  const sent = merge.delivery;
  return html`<h2>Last merge</h2><p>${merge.commit ? html`<code>${clean(merge.branch)}</code> at <code>${merge.commit.slice(0, 8)}</code>` : "Nothing is merged."}</p>
    ${sent && html`<p>${clean(sent.into)}: <${Status} status=${sent.status} /> ${clean(sent.message)}</p>`}
    ${[merge.base_fault, merge.branch_fault].filter(Boolean).map((fault) => html`<p class="error">${clean(fault)}</p>`)}
    <${Results} rows=${merge.results} />`;
}

const Results = ({rows}) => rows.length > 0 && html`<table><thead><tr><th>Agent</th><th>Result</th><th>Why</th></tr></thead><tbody>
  ${rows.map((row) => html`<tr><td>${clean(row.session)}</td><td><${Status} status=${row.status} /></td>
    <td>${clean(row.message)}${(row.conflicts ?? []).map((conflict) => html`<div>${conflict.kind}: ${clean(conflict.paths.join(", "))}${
      conflict.partners.length > 0 ? ` with ${clean(conflict.partners.join(", "))}` : ""}</div>`)}</td></tr>`)}</tbody></table>`;
