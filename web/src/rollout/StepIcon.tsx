const PATHS: Record<string, string> = {
  system:
    "M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5ZM8 1.5v2M8 12.5v2M1.5 8h2M12.5 8h2M3.4 3.4l1.4 1.4M11.2 11.2l1.4 1.4M3.4 12.6l1.4-1.4M11.2 4.8l1.4-1.4",
  user: "M8 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM2.5 14c0-3 2.5-4.5 5.5-4.5s5.5 1.5 5.5 4.5",
  model: "M2 3h12v8H7l-3 3v-3H2ZM5 6h6M5 8.5h4",
  agent: "M5 4 1.5 8 5 12M11 4l3.5 4L11 12M9 3 7 13",
  program: "M1.5 2.5h13v11h-13ZM4 6l2.5 2L4 10M8.5 10.5h3.5",
  tool: "M10.5 2a3.5 3.5 0 0 0-3.3 4.7L2 12l2 2 5.3-5.2A3.5 3.5 0 0 0 14 5.5L11.8 7.7 9.3 6.7 8.3 4.2Z",
  judge: "M8 2v11M4 13.5h8M3 4.5h10M3 4.5 1.5 9h3ZM13 4.5 11.5 9h3Z",
  score: "M8 1.8l1.9 4 4.3.6-3.1 3 .7 4.3L8 11.6l-3.8 2.1.7-4.3-3.1-3 4.3-.6Z",
  machine: "M1.5 2.5h13v8.5h-13ZM5 14h6M8 11v3",
  error: "M8 1.8 15 14H1ZM8 6v4M8 11.8v.4",
  reasoning: "M8 1.8a4.4 4.4 0 0 0-2.4 8.1V12h4.8V9.9A4.4 4.4 0 0 0 8 1.8ZM6 14.2h4",
  note: "M3 2h10v8l-4 4H3ZM9 14v-4h4",
};

/** A small picture for a kind of step; the word is always beside it or in `label`. */
export function StepIcon({ kind, label }: { kind: string; label?: string }) {
  const hidden = label === undefined;
  return (
    <svg
      class={`step-icon icon-${kind}`}
      viewBox="0 0 16 16"
      width="14"
      height="14"
      role={hidden ? undefined : "img"}
      aria-label={label}
      aria-hidden={hidden}
    >
      <path d={PATHS[kind] ?? PATHS.agent} />
    </svg>
  );
}
