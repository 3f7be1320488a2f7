import { afterEach, describe, expect, it } from "vitest";
import { address, settings } from "./source";

afterEach(() => {
  settings.static = false;
});

describe("addresses", () => {
  it("are those of the API on a server", () => {
    expect(address(["runs", "a/b", "rollouts"], { after: 0, limit: 5 })).toBe(
      "api/runs/a%2Fb/rollouts?after=0&limit=5",
    );
  });

  it.each([
    [["runs"], {}, "data/runs.json"],
    [["runs", "model-1.5b"], {}, "data/runs/model-1.5b/run.json"],
    [["runs", "a", "rollouts"], { after: 0 }, "data/runs/a/rollouts.json"],
    [["runs", "a", "executions", 7], {}, "data/runs/a/executions/7.json"],
    [["runs", "a", "executions", 7, "text", 2], {}, "data/runs/a/executions/7/text/2.txt"],
    [["runs", "a", "images", 7, "1.png"], {}, "data/runs/a/images/7/1.png"],
    [["compare"], { runs: "a,b" }, "data/compare/a%2Cb.json"],
  ])("of %j are files in an export", (path, params: Record<string, string | number>, file) => {
    settings.static = true;
    expect(address(path, params)).toBe(file);
  });
});
