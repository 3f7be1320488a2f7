import { useState } from "preact/hooks";
import type { StepNote } from "../api";
import { formatTime } from "../format";
import { cleanText, wellFormed } from "../text";
import { useRollout } from "./context";
import { StepIcon } from "./StepIcon";

/** The notes of a step, and the form for a new one. */
export function StepNotes({ step, adding, onDone }: { step: number; adding: boolean; onDone: () => void }) {
  const { notes, writeNote } = useRollout();
  const own = notes.filter((note) => note.step === step);
  if (own.length === 0 && !adding) return null;
  return (
    <div class="notes">
      {own.map((note) => (
        <OneNote key={note.number} note={note} />
      ))}
      {adding && writeNote && (
        <NoteForm
          text=""
          onCancel={onDone}
          onSave={async (text) => {
            await writeNote(step, text, null);
            onDone();
          }}
        />
      )}
    </div>
  );
}

function OneNote({ note }: { note: StepNote }) {
  const { writeNote } = useRollout();
  const [editing, setEditing] = useState(false);
  const [problem, setProblem] = useState("");
  if (editing && writeNote) {
    return (
      <NoteForm
        text={note.text}
        onCancel={() => setEditing(false)}
        onSave={async (text) => {
          await writeNote(note.step, text, note.number);
          setEditing(false);
        }}
      />
    );
  }
  const remove = () =>
    writeNote?.(note.step, "", note.number).catch((error: Error) => setProblem(`Not removed: ${error.message}`));
  return (
    <div class="note">
      <StepIcon kind="note" label="Note" />
      <div class="note-text plain">{cleanText(note.text)}</div>
      <span class="note-time">{formatTime(note.at)}</span>
      {writeNote && (
        <span class="note-actions">
          <button type="button" class="small-button" onClick={() => setEditing(true)}>
            Edit<span class="visually-hidden"> the note</span>
          </button>
          <button type="button" class="small-button" onClick={remove}>
            Remove<span class="visually-hidden"> the note</span>
          </button>
        </span>
      )}
      {problem && (
        <span role="alert" class="load-problem">
          {problem}
        </span>
      )}
    </div>
  );
}

interface NoteFormProps {
  text: string;
  onSave: (text: string) => Promise<void>;
  onCancel: () => void;
}

function NoteForm({ text, onSave, onCancel }: NoteFormProps) {
  const [value, setValue] = useState(text);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const save = () => {
    if (value.trim() === "" || busy) return;
    setBusy(true);
    onSave(wellFormed(value.trim())).catch((error: Error) => {
      setBusy(false);
      setProblem(`Not saved: ${error.message}`);
    });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") onCancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="note-form">
      <textarea
        aria-label="Text of the note"
        rows={2}
        value={value}
        maxLength={10_000}
        placeholder="A note on this step; Ctrl+Enter saves it"
        ref={focus}
        onInput={(event) => setValue(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="note-actions">
        <button type="button" class="button primary" disabled={busy || value.trim() === ""} onClick={save}>
          Save
        </button>
        <button type="button" class="button" onClick={onCancel}>
          Cancel
        </button>
        {problem && (
          <span role="alert" class="load-problem">
            {problem}
          </span>
        )}
      </div>
    </div>
  );
}

function focus(element: HTMLTextAreaElement | null): void {
  if (element && document.activeElement !== element && element.dataset.focused === undefined) {
    element.dataset.focused = "";
    element.focus();
  }
}
