import { useMemo } from "preact/hooks";
import type { PoolDetail, PoolMachine } from "../../api";
import { Count } from "../../components/Count";
import { type DataColumn, DataTable } from "../../components/DataTable";
import { Message } from "../../components/Message";
import { StateLabel } from "../../components/StateLabel";
import { formatAge } from "../../format";
import { useElapsed } from "../../polling";
import { sortRows } from "../../resources";
import { changedAddress, setParams, useRoute } from "../../router";
import { parseSort, sortText } from "../../sorting";
import { cleanText } from "../../text";
import { HolderLink } from "./HolderLink";

/** The machines of a pool. A click opens the panel of a machine; beside it, the table has only its first columns. */
export function MachineTable(props: { detail: PoolDetail; receivedAt: number; isNarrow: boolean }) {
  const { detail, receivedAt, isNarrow } = props;
  const { params } = useRoute();
  const elapsed = useElapsed(receivedAt);
  const sort = parseSort(params.get("sort"));
  const rows = useMemo(() => sortRows(detail.machines, sort), [detail, params.get("sort")]);
  const columns = useMemo(
    () => machineColumns(detail.row.run, elapsed).filter((column) => !isNarrow || NARROW.includes(column.id)),
    [detail.row.run, elapsed, isNarrow],
  );
  return (
    <section class="panel">
      <DataTable
        label="Machines"
        columns={columns}
        rows={rows}
        rowKey={(machine) => machine.name}
        rowHref={(machine) => changedAddress({ machine: machine.name })}
        sort={sort}
        onSort={(next) => setParams({ sort: sortText(next) })}
        empty={<Message>The pool has no machines.</Message>}
      />
    </section>
  );
}

const NARROW = ["name", "state", "since", "holder"];

function machineColumns(run: string, elapsed: number): DataColumn<PoolMachine>[] {
  const all: DataColumn<PoolMachine>[] = [
    { id: "name", title: "Machine", width: "80px", link: true, cell: (machine) => machine.name },
    { id: "state", title: "State", width: "110px", cell: (machine) => <StateLabel state={machine.state} /> },
    {
      id: "since",
      title: "For",
      width: "72px",
      numeric: true,
      hint: "Time in this state",
      cell: (machine) => formatAge(machine.since + elapsed),
    },
    {
      id: "holder",
      title: "Holder",
      width: "minmax(150px, 1.5fr)",
      cell: (machine) => <HolderLink holder={machine.holder} run={run} />,
    },
    {
      id: "lease_age",
      title: "Lease",
      width: "72px",
      numeric: true,
      hint: "Age of the lease",
      cell: (machine) => (machine.lease_age === null ? "" : formatAge(machine.lease_age + elapsed)),
    },
    {
      id: "leases",
      title: "Leases",
      width: "60px",
      numeric: true,
      cell: (machine) => <Count value={machine.leases} />,
    },
    {
      id: "resets",
      title: "Resets",
      width: "60px",
      numeric: true,
      cell: (machine) => <Count value={machine.resets} />,
    },
    {
      id: "failures",
      title: "Failures",
      width: "66px",
      numeric: true,
      cell: (machine) => <Count value={machine.failures} bad />,
    },
    {
      id: "detail",
      title: "Detail",
      width: "minmax(120px, 2fr)",
      cell: (machine) => <span title={cleanText(machine.detail)}>{cleanText(machine.detail)}</span>,
    },
  ];
  return all.map((column) => ({ ...column, sortable: true, descendingFirst: column.numeric ?? false }));
}
