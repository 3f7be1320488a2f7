import { useState } from "preact/hooks";
import type { ControlAnswer, LiveRun } from "../../api";
import { send } from "../../source";

/** Sends commands to the session of a live run; `answer` is what the last one did. */
export interface Control {
  answer: ControlAnswer | null;
  isBusy: boolean;
  command: (command: string, argument?: string) => void;
}

export function useControl(run: string): Control {
  const [answer, setAnswer] = useState<ControlAnswer | null>(null);
  const [isBusy, setBusy] = useState(false);
  const command = (name: string, argument = "") => {
    setBusy(true);
    send<ControlAnswer>(["runs", run, "control"], { command: name, argument })
      .then(setAnswer, (error: Error) => setAnswer({ ok: false, message: error.message }))
      .finally(() => setBusy(false));
  };
  return { answer, isBusy, command };
}

/** Pause, resume, stop, and how many rollouts are under way at a time. */
export function RunControls({ live, control }: { live: LiveRun; control: Control }) {
  const [isStopping, setStopping] = useState(false);
  const isPaused = live.state === "paused" || live.state === "pausing";
  const isEnding = ["stopping", "stopped", "complete"].includes(live.state);
  const set = (count: number) => control.command("set", `num-rollouts=${Math.max(1, count)}`);
  if (isStopping) {
    return (
      <fieldset class="controls" aria-label="Confirm">
        <span>Stop the run? The same command continues it later.</span>
        <button
          type="button"
          class="button danger"
          onClick={() => {
            setStopping(false);
            control.command("stop");
          }}
        >
          Stop the run
        </button>
        <button type="button" class="button" onClick={() => setStopping(false)}>
          Keep running
        </button>
      </fieldset>
    );
  }
  return (
    <fieldset class="controls" aria-label="Control" disabled={control.isBusy || isEnding}>
      {control.answer && (
        <span class={`control-answer ${control.answer.ok ? "" : "error"}`} role="status" title={control.answer.message}>
          {control.answer.message}
        </span>
      )}
      <span class="stepper">
        <span class="soft">Rollouts at a time</span>
        <button
          type="button"
          class="icon-button"
          aria-label="One rollout fewer at a time"
          disabled={live.num_rollouts <= 1}
          onClick={() => set(live.num_rollouts - 1)}
        >
          −
        </button>
        <input
          type="number"
          min="1"
          aria-label="Rollouts at a time"
          value={live.num_rollouts}
          onChange={(event) => {
            const count = Math.floor(Number(event.currentTarget.value));
            if (count >= 1 && count !== live.num_rollouts) set(count);
          }}
        />
        <button
          type="button"
          class="icon-button"
          aria-label="One rollout more at a time"
          onClick={() => set(live.num_rollouts + 1)}
        >
          +
        </button>
      </span>
      <button type="button" class="button" onClick={() => control.command(isPaused ? "resume" : "pause")}>
        {isPaused ? "Resume" : "Pause"}
      </button>
      <button type="button" class="button danger" onClick={() => setStopping(true)}>
        Stop…
      </button>
    </fieldset>
  );
}
