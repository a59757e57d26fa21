// A patch as files and lines; what can run code on this machine comes first.
import {html, useState, clean, useLoad, part} from "./ui.js";

const MAX_LINES = 4000;
const FOLDED = 60;

export function Diff({site, query, stamp}) {
  const found = useLoad(`/api/diff/${part(site)}?${new URLSearchParams(query)}`, stamp);
  const [most, setMost] = useState(MAX_LINES);
  if (found.error) return html`<p class="error">${clean(found.error)}</p>`;
  if (!found.value) return html`<p class="dim">Loading…</p>`;
  const {about, patch, cut} = found.value, document = about.document;
  if (!patch.trim()) return html`<p class=${about.code ? "error" : "dim"}>${clean(about.error) || "No changes."}</p>`;
  const flagged = new Set(document?.executable_config ?? []);
  const files = window.Diff2Html.parse(patch, {diffMaxChanges: 50000});
  const isFlagged = (file) => flagged.has(file.newName) || flagged.has(file.oldName);
  files.sort((a, b) => isFlagged(b) - isFlagged(a));
  let left = most;
  const shown = files.map((file) => {
    const lines = file.blocks.flatMap((block) => [{type: "header", content: block.header}, ...block.lines]).slice(0, Math.max(0, left));
    left -= lines.length;
    return {file, lines};
  }).filter(({file, lines}) => lines.length || file.isBinary || !file.blocks.length);
  return html`<div class="diff">
    ${document?.sessions && html`<p class="dim">The work of ${document.sessions.length} ${document.sessions.length === 1 ? "agent" : "agents"}, merged: ${clean(document.sessions.join(", "))}</p>`}
    ${document?.conflicting?.length > 0 && html`<p class="warn">Not in it, because it conflicts: ${clean(document.conflicting.join(", "))}</p>`}
    <p class="facts"><span><b>${files.length}</b> ${files.length === 1 ? "file" : "files"}</span>
      <span class="good">+${files.reduce((sum, file) => sum + file.addedLines, 0)}</span><span class="bad">−${files.reduce((sum, file) => sum + file.deletedLines, 0)}</span></p>
    ${cut && html`<p class="warn">This diff is too large to show whole; \`shoal diff\` prints it.</p>`}
    ${files.length > 1 && html`<nav aria-label="Changed files" tabindex="0">${files.map((file, index) => html`<a href=${`#file-${index}`} onClick=${(event) => { event.preventDefault(); window.document.getElementById(`file-${index}`)?.scrollIntoView(); }}>
      <span class="clip">${isFlagged(file) ? "⚠ " : ""}${nameOf(file)}</span><span class="good">+${file.addedLines}</span><span class="bad">−${file.deletedLines}</span></a>`)}</nav>`}
    ${shown.map(({file, lines}) => html`<${File} key=${file.newName + file.oldName} id=${`file-${files.indexOf(file)}`} file=${file} lines=${lines} isFlagged=${isFlagged(file)} isOpen=${files.length <= FOLDED} />`)}
    ${left <= 0 && html`<button type="button" onClick=${() => setMost(most * 4)}>Show more</button>`}</div>`;
}

const nameOf = (file) => clean(file.isDeleted ? file.oldName : file.isRename ? `${file.oldName} → ${file.newName}` : file.newName);
const KINDS = [["isNew", "new"], ["isDeleted", "deleted"], ["isRename", "renamed"], ["isBinary", "binary"]];

function File({id, file, lines, isFlagged, isOpen}) {
  return html`<details class="file" id=${id} open=${isOpen}><summary>${isFlagged && html`<span class="tag bad">⚠ can run code on your machine</span> `}
      <b class="mono">${nameOf(file)}</b> ${KINDS.filter(([key]) => file[key]).map(([, name]) => html`<span class="tag">${name}</span> `)}
      ${file.oldMode && file.newMode && file.oldMode !== file.newMode && html`<span class="tag warn">mode ${file.newMode}</span> `}<span class="good">+${file.addedLines}</span> <span class="bad">−${file.deletedLines}</span></summary>
    ${lines.length > 0 && html`<pre tabindex="0" aria-label=${`Changes of ${nameOf(file)}`}>${lines.map((line) => html`<span class=${`code ${line.type}`}><i>${line.oldNumber ?? ""}</i><i>${line.newNumber ?? ""}</i>${clean(line.content)}\n</span>`)}</pre>`}</details>`;
}
