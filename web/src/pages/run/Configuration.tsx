/** The settings of a run, without secrets. */
export function Configuration({ config }: { config: Record<string, unknown> }) {
  const entries = Object.entries(config).sort(([a], [b]) => a.localeCompare(b));
  return (
    <dl class="configuration">
      {entries.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class={value === null || value === "" ? "soft" : ""}>{shown(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

function shown(value: unknown): string {
  if (value === null || value === "") return "not set";
  return typeof value === "string" ? value : JSON.stringify(value);
}
