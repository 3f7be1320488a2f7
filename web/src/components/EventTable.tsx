import { useState } from "preact/hooks";
import { counted, formatClock, formatTime } from "../format";
import { cleanText } from "../text";
import { StateLabel } from "./StateLabel";
import "./EventTable.css";

export interface StateEvent {
  at: number;
  name: string;
  state: string;
  /** Who or why; text of machines and workers. */
  detail: string;
}

const FIRST = 12;

/** State changes of machines or workers, the newest first. */
export function EventTable({ title, nameTitle, events }: { title: string; nameTitle: string; events: StateEvent[] }) {
  const [isOpen, setOpen] = useState(false);
  const shown = isOpen ? events : events.slice(0, FIRST);
  return (
    <section class="panel event-table" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <span class="soft">{events.length > 0 ? counted(events.length, "event") : ""}</span>
      </header>
      {events.length === 0 ? (
        <p class="body soft">Nothing has happened yet.</p>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Time</th>
              <th>{nameTitle}</th>
              <th>Event</th>
              <th>Detail</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((event) => (
              <tr key={`${event.at} ${event.name} ${event.state}`}>
                <td class="time" title={formatTime(event.at)}>
                  {formatClock(event.at)}
                </td>
                <td class="mono">{event.name}</td>
                <td>
                  <StateLabel state={event.state} />
                </td>
                <td class="detail">{cleanText(event.detail)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {events.length > FIRST && (
        <div class="body">
          <button type="button" class="button" onClick={() => setOpen(!isOpen)}>
            {isOpen ? "Show fewer" : `Show all ${events.length}`}
          </button>
        </div>
      )}
    </section>
  );
}
