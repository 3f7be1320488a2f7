import { describe, expect, it } from "vitest";
import { href, parseRoute } from "./router";

describe("routes", () => {
  it("returns what an address was made from", () => {
    const address = href(["run", "a b", "rollout", "x/y?z#1", 2], { step: 4, q: "a&b", empty: "", none: null });
    const { path, params } = parseRoute(address);
    expect(path).toEqual(["run", "a b", "rollout", "x/y?z#1", "2"]);
    expect(Object.fromEntries(params)).toEqual({ step: "4", q: "a&b" });
  });

  it("keeps a part that is not valid percent encoding", () => {
    expect(parseRoute("#/run/100%").path).toEqual(["run", "100%"]);
  });
});
