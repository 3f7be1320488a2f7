import type { ComponentChildren } from "preact";

/** A message in place of content: loading, empty, or an error. */
export function Message({
  kind = "info",
  children,
}: {
  kind?: "info" | "error" | "loading";
  children: ComponentChildren;
}) {
  return (
    <div class={`message ${kind}`} role={kind === "error" ? "alert" : "status"}>
      {children}
    </div>
  );
}
