"""The screen of `shoal top`, made with textual: two tables, a pane for logs and diffs, and the keys.

What is shown is folded from events; what is done is a command, run as a person would type it.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, RichLog

from shoal.cli.live.text_width import clean
from shoal.cli.live.top_rows import (
    AGENT_COLUMNS,
    RUN_COLUMNS,
    STYLES,
    Row,
    RunRows,
    agent_rows,
    choose_columns,
    look_alike,
    waiting_notes,
)
from shoal.cli.logs import log_line
from shoal.cli.output import escape
from shoal.cli.render.patch import split_patch
from shoal.dashboard.feed import SiteFeed
from shoal.errors import ShoalError
from shoal.proc.own_command import Outcome, run_own
from shoal.store.reader import read_session

REFRESH_SECONDS = 1.0
MOST_LINES = 5000
MOST_NOTE_CHARS = 300
COLUMNS = {"runs": RUN_COLUMNS, "agents": AGENT_COLUMNS}


class QuestionScreen(ModalScreen[str | None]):
    """Asks for a key out of some, or for a text; Esc takes it back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, question: str, keys: str = "", text: str | None = None) -> None:
        super().__init__()
        self._question = question
        self._keys = keys
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay it out."""
        with Vertical(id="question"):
            yield Label(Text(self._question))
            if self._text is not None:
                yield Input(value=self._text, id="text")

    def on_key(self, event: object) -> None:
        """Take one of the keys."""
        key = getattr(event, "key", "")
        if len(key) == 1 and key in self._keys:
            self.dismiss(key)

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        """Take the text."""
        event.stop()
        self.dismiss(event.value)


class TopApp(App[None]):
    """Runs and agents of one repository."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "shoal top"
    CSS = """
    #head { height: 1; color: $text-muted; }
    #note { height: auto; max-height: 3; color: $warning; display: none; }
    #runs { height: 1fr; max-height: 12; }
    #agents { height: 1fr; }
    #pane { height: 2fr; display: none; border-top: solid $primary; }
    #filter { display: none; height: 3; }
    QuestionScreen { align: center middle; }
    #question { width: 90%; max-width: 90; height: auto; border: round $primary; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("l", "log", "log"),
        Binding("d", "diff", "diff"),
        Binding("s", "send", "send"),
        Binding("x", "stop", "stop"),
        Binding("a", "approve", "approve"),
        Binding("p", "preview", "preview"),
        Binding("m", "merge", "merge"),
        Binding("escape", "close", "back"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, site: SiteFeed, folder: Path) -> None:
        super().__init__()
        self._site = site
        self._runs = RunRows(site)
        self._folder = folder
        self._filter = ""
        self._shown: dict[str, list[Row]] = {}
        self._followed: str | None = None
        """The session whose log is followed."""
        self._read = 0

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Label("", id="head")
        yield DataTable(id="runs", cursor_type="row", zebra_stripes=True)
        yield Label("", id="note")
        yield DataTable(id="agents", cursor_type="row")
        yield RichLog(id="pane", wrap=True, max_lines=MOST_LINES)
        yield Input(placeholder="runs and agents that contain …", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Start to follow the ledger."""
        self._table("runs").focus()
        for number in (signal.SIGTERM, signal.SIGHUP):  # else the terminal would stay as this screen needs it
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.follow()

    @work(exclusive=True, group="follow")
    async def follow(self) -> None:
        """Show what is new, again and again."""
        while True:
            try:
                await asyncio.to_thread(self._runs.poll)
                self._refresh_tables()
                self._extend_log()
            except NoMatches:  # the screen was taken down meanwhile
                return
            except (ShoalError, OSError) as error:
                self._complain(str(error))
            await asyncio.sleep(REFRESH_SECONDS)

    @property
    def run_name(self) -> str | None:
        """Name the run that is chosen."""
        return self._find_choice("runs")

    @property
    def session_name(self) -> str | None:
        """Name the agent that is chosen."""
        return self._find_choice("agents")

    def _table(self, name: str) -> "DataTable[Text]":
        return self.query_one(f"#{name}", DataTable)

    @property
    def _pane(self) -> RichLog:
        return self.query_one("#pane", RichLog)

    def _find_choice(self, table: str) -> str | None:
        rows, place = self._shown.get(table, []), self._table(table).cursor_row
        return rows[place].key if 0 <= place < len(rows) else None

    def _refresh_tables(self) -> None:
        self._fill("runs", self._runs.rows(self._filter))
        name = self.run_name
        agents, note = [], ""
        if name is not None:
            note = "\n".join(waiting_notes(self._site.run(name)))
            room = self._table("agents").scrollable_content_region.width
            agents = agent_rows(self._site.run(name), self._site.progress(name), self._filter, room)
        self._fill("agents", agents)
        label = self.query_one("#note", Label)
        label.update(Text(note))
        label.display = bool(note)
        filter_ = f" · filter: {self._filter}" if self._filter else ""
        head = f"{clean(str(self._site.folder))}: {self._runs.live} live, {len(self._site.runs)} runs{clean(filter_)}"
        self.query_one("#head", Label).update(Text(head))

    def _fill(self, name: str, rows: Sequence[Row]) -> None:
        """Show rows in a table; who is chosen stays so, wherever its row goes."""
        table, before, chosen = self._table(name), self._shown.get(name, []), self._find_choice(name)
        shown = choose_columns(COLUMNS[name], table.scrollable_content_region.width)
        keys = [row.key for row in rows]
        if keys == [row.key for row in before] and shown == tuple(key.value for key in table.columns):
            for old, row in zip(before, rows, strict=True):
                for column in shown:
                    cell, before_it = row.cells[column], old.cells[column]
                    if not look_alike(before_it, cell):
                        is_wider = cell.cell_len > before_it.cell_len
                        table.update_cell(row.key, column, cell, update_width=is_wider)
        else:
            table.clear(columns=True)
            table.add_columns(*((column, column) for column in shown))
            for row in rows:
                table.add_row(*(row.cells[column] for column in shown), key=row.key)
            table.move_cursor(row=keys.index(chosen) if chosen in keys else 0)
        self._shown[name] = list(rows)

    @on(DataTable.RowHighlighted, "#runs")
    def show_agents(self) -> None:
        """Show the agents of the run that was chosen."""
        self._refresh_tables()

    @on(DataTable.RowSelected)
    def act_on_enter(self, event: DataTable.RowSelected) -> None:
        """Go from a run to its agents, and from an agent to its log."""
        if event.data_table.id == "runs":
            self._table("agents").focus()
        else:
            self.action_log()

    def _open_pane(self, title: str, lines: Iterator[Text] | Sequence[Text] = ()) -> None:
        self._followed = None
        self._pane.clear()
        self._pane.border_title = escape(title)
        self._pane.display = True
        for line in lines:
            self._pane.write(line, scroll_end=False)

    def _complain(self, text: str) -> None:
        self.notify(clean(text)[:MOST_NOTE_CHARS] or "it failed", severity="error", markup=False)

    def action_filter(self) -> None:
        """Ask what to look for."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    @on(Input.Changed, "#filter")
    def apply_filter(self, event: Input.Changed) -> None:
        """Show only what the text is in."""
        self._filter = event.value.casefold().strip()
        self._refresh_tables()

    @on(Input.Submitted, "#filter")
    def keep_filter(self) -> None:
        """Go back to the runs, with the filter on."""
        self.query_one("#filter", Input).display = False
        self._table("runs").focus()

    def action_close(self) -> None:
        """Close what is open: the filter, then the pane."""
        field = self.query_one("#filter", Input)
        if field.display or self._filter:
            field.value = ""
            self.keep_filter()
        elif self._pane.display:
            self._pane.display = False
            self._followed = None
            self._table("agents").focus()
        else:
            self._table("runs").focus()

    def action_log(self) -> None:
        """Follow the log of the agent."""
        if (session := self.session_name) is not None:
            self._open_pane(f"log of {session}")
            self._followed, self._read = session, 0
            self._extend_log()

    def _extend_log(self) -> None:
        if self._followed is None:
            return
        is_at_end = self._pane.is_vertical_scroll_end
        for recorded in read_session(self._site.paths, self._followed, self._read):
            self._read = recorded.seq
            line = log_line(recorded.event, lambda text, _: text)
            if line is not None:
                self._pane.write(Text(line, "dim" if line.startswith("--") else ""), scroll_end=is_at_end)

    @work(group="pane", exclusive=True)
    async def action_diff(self) -> None:
        """Show what the agent changed, or the whole run where that is chosen."""
        words, title = (["diff", "--", self.session_name or ""], f"diff of {self.session_name}")
        if self.session_name is None or self.focused is self._table("runs"):
            words, title = ["diff", "--combined", "--", self.run_name or ""], f"diff of {self.run_name}"
        if self.run_name is None:
            return
        self._open_pane(title, [Text("…", "dim")])
        done = await self._run(words)
        notes = [Text(escape(line), "yellow") for line in done.error.splitlines()]
        self._open_pane(title, [*notes, *(Text(line.text, STYLES[line.colour]) for line in split_patch(done.output))])

    @work
    async def action_send(self) -> None:
        """Send the agent a message."""
        if (session := self.session_name) is None:
            return
        text = await self.push_screen_wait(QuestionScreen(f"message for {clean(session)}; Enter sends it", text=""))
        if text and text.strip():
            await self._do(["send", "--json", "--", session, text], f"sent to {session}")

    @work
    async def action_stop(self) -> None:
        """Stop the agent, or the whole run where that is chosen."""
        is_run = self.focused is self._table("runs") or self.session_name is None
        if (target := self.run_name if is_run else self.session_name) is None:
            return
        question = f"stop {clean(target)} and keep the work so far? (y/n)"
        if await self.push_screen_wait(QuestionScreen(question, "yn")) == "y":
            await self._do(["stop", "--json", "--", target], f"stopping {target}")

    @work
    async def action_approve(self) -> None:
        """Answer the gate that waits."""
        run = None if self.run_name is None else self._site.run(self.run_name)
        if run is None or not run.waiting:
            self._complain("no gate of this run is waiting for an answer")
            return
        step = run.waiting[0]
        asked = "" if step.gate is None else step.gate.message
        question = f'approve {clean(step.step)}? "{clean(asked)}" (y/n)'
        answer = await self.push_screen_wait(QuestionScreen(question, "yn"))
        if answer is not None:
            verdict = [] if answer == "y" else ["--reject"]
            await self._do(["approve", *verdict, "--json", "--", run.run, step.step], f"answered {step.step}")

    @work(group="pane", exclusive=True)
    async def action_preview(self) -> None:
        """Show which agents' work conflicts."""
        if (run := self.run_name) is not None:
            await self._show_output(f"merge preview of {run}", ["merge", "--preview", "--", run])

    @work
    async def action_merge(self) -> None:
        """Merge the work of the run, into a branch if one is named."""
        if (run := self.run_name) is None:
            return
        question = f"merge {clean(run)} into which of your branches? Empty makes only the branch shoal/{clean(run)}"
        into = await self.push_screen_wait(QuestionScreen(question, text=""))
        if into is not None:
            options = [f"--into={into.strip()}", "--yes"] if into.strip() else []
            await self._show_output(f"merge of {run}", ["merge", *options, "--", run])

    async def _show_output(self, title: str, words: list[str]) -> None:
        self._open_pane(title, [Text("…", "dim")])
        done = await self._run(words)
        printed = done.output.decode(errors="replace") + done.error
        self._open_pane(title, [Text(escape(line)) for line in printed.splitlines()[:MOST_LINES]])

    async def _do(self, words: list[str], note: str) -> None:
        done = await self._run(words)
        if done.code:
            self._complain(done.error)
        else:
            self.notify(clean(note), markup=False)

    async def _run(self, words: list[str]) -> Outcome:
        try:
            return await run_own(self._folder, words, os.environ)
        except (ShoalError, OSError) as error:
            return Outcome(1, b"", str(error))
