import { describe, expect, it } from "vitest";
import { binWidth, histogram, throughput } from "./histogram";

describe("histogram", () => {
  it("counts each value once", () => {
    const found = histogram(Float64Array.from([1, 2, 2, 3, 10, Number.NaN]));
    expect(found).toMatchObject({ count: 5, start: 0, width: 1, median: 2, largest: 10, isOpen: false });
    expect([...(found?.bins ?? [])]).toEqual([0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1]);
  });

  it("puts stragglers into the last bin", () => {
    const values = Float64Array.from({ length: 1000 }, (_, index) => (index === 0 ? 1e6 : 1 + (index % 10)));
    const found = histogram(values);
    expect(found?.isOpen).toBe(true);
    expect(found?.largest).toBe(1e6);
    expect(found?.bins.length).toBeLessThan(30);
    expect(found?.bins.reduce((sum, count) => sum + count, 0)).toBe(1000);
  });

  it("accepts equal values, one value and none", () => {
    expect([...(histogram(Float64Array.from([5, 5]))?.bins ?? [])].at(-1)).toBe(2);
    expect(histogram(Float64Array.from([0]))?.count).toBe(1);
    expect(histogram(Float64Array.from([Number.NaN]))).toBeNull();
  });

  it.each([
    [0.3, false, 0.5],
    [0.3, true, 1],
    [1.2, false, 2],
    [70, true, 100],
  ])("has bins with round bounds: %d", (least, isWhole, width) => expect(binWidth(least, isWhole)).toBeCloseTo(width));
});

describe("throughput", () => {
  it("counts rollouts a minute", () => {
    const found = throughput(Float64Array.from([1000, 1001, 1030, 0, Number.NaN]), (index) => index === 2, 10);
    expect(found?.width).toBe(5);
    expect(found?.ended.reduce((sum, value) => sum + value, 0)).toBeCloseTo((3 * 60) / 5);
    expect(found?.failed.reduce((sum, value) => sum + value, 0)).toBeCloseTo(60 / 5);
    expect(found?.times[0]).toBe(1002.5);
  });

  it("is unknown without results", () => expect(throughput(Float64Array.from([0]), () => false)).toBeNull());
});
