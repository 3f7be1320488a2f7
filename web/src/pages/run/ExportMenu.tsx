import { CopyButton } from "../../components/CopyButton";
import { settings } from "../../source";
import "./ExportMenu.css";

/** What each format is for; plug-ins add further ones. */
const READERS: Record<string, string> = {
  atif: "trajectories for Harbor and others",
  inspect: "a log for inspect view",
  jsonl: "one JSON object per result",
  "openai-chat": "conversations for fine-tuning",
  osworld: "result folders of OSWorld",
  parquet: "a table for data frames",
  trl: "datasets for TRL",
};
const FOLDERS = new Set(["atif", "osworld", "trl"]);
const SUFFIXES: Record<string, string> = { inspect: ".eval", parquet: ".parquet" };

/** The commands that write the results for other tools. */
export function ExportMenu({ run }: { run: string }) {
  if (settings.static || settings.formats.length === 0) return null;
  return (
    <details class="export-menu">
      <summary>Export</summary>
      <div class="panel export-list">
        <p class="soft">Commands that write the results for other tools:</p>
        <ul>
          {settings.formats.map((format) => (
            <li key={format}>
              <strong>{format}</strong> <span class="soft">{READERS[format] ?? ""}</span>
              <CopyButton text={exportCommand(run, format)} label="Copy command" />
              <code>{exportCommand(run, format)}</code>
            </li>
          ))}
        </ul>
      </div>
    </details>
  );
}

/** The command that exports a run; names are quoted for a shell. */
export function exportCommand(run: string, format: string): string {
  const suffix = FOLDERS.has(format) ? `-${format}` : (SUFFIXES[format] ?? ".jsonl");
  const path = shellWord(`${settings.folder}/${run}`);
  return `paragent export ${path} --format ${shellWord(format)} --output ${shellWord(run + suffix)}`;
}

function shellWord(text: string): string {
  return /^[\w./@%+=:,-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
