"""Mistakes with machines, pools and images."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake
from tests.mistakes.surroundings import busy_port, free_port, pool

MISTAKES = (
    Mistake(
        title="typing error in the name of a provider",
        command="paragent pool serve --provider-name qemuu",
        says=("there is no provider called 'qemuu', did you mean 'qemu'? There are:",),
    ),
    Mistake(
        title="an image that does not exist",
        command="paragent pool serve --path-to-vm ubuntu.qcow2",
        says=(
            "path_to_vm (--path-to-vm): 'ubuntu.qcow2' is neither a file nor a built image; images:",
            "`paragent vm build` builds them",
        ),
    ),
    Mistake(
        title="a pool without machines",
        command="paragent pool serve --provider-name process --num-vms 0",
        says=("the size of a pool must be an integer of at least 1, not 0",),
    ),
    Mistake(
        title="more machines than the memory allows",
        command="paragent pool serve --num-vms 5000 --memory 65536",
        says=(
            "machines of 65,536 MiB need",
            "and this host has",
            "use fewer machines (--num-vms), or less memory for each",
        ),
    ),
    Mistake(
        title="an unknown option of a provider",
        command="paragent pool serve --option colour=red",
        says=("qemu has no option 'colour'. The options are: accelerator,",),
    ),
    Mistake(
        title="an option of a provider without a value",
        command="paragent pool serve --option accelerator",
        says=("--option must be of the form NAME=VALUE, not 'accelerator'",),
    ),
    Mistake(
        title="VMware without a machine",
        command="paragent pool serve --provider-name vmware",
        says=("vmware needs path_to_vm (--path-to-vm): the .vmx file of the machine to clone",),
    ),
    Mistake(
        title="VirtualBox without a snapshot",
        command="paragent pool serve --provider-name virtualbox --path-to-vm ubuntu",
        says=(
            "virtualbox needs snapshot_name (--snapshot-name)",
            "Take one with: VBoxManage snapshot ubuntu take init_state",
        ),
    ),
    Mistake(
        title="AWS without an image",
        command="paragent pool serve --provider-name aws",
        says=("aws needs path_to_vm (--path-to-vm): the id of an AMI",),
    ),
    Mistake(
        title="AWS without a region",
        command="paragent pool serve --provider-name aws --path-to-vm ami-0123456789",
        variables={"AWS_CONFIG_FILE": "none", "AWS_EC2_METADATA_DISABLED": "true"},
        says=("aws: no region is set; set --region or the variable AWS_DEFAULT_REGION",),
    ),
    Mistake(
        title="no address of a pool",
        command="paragent pool status",
        says=("the address of the pool is missing: pass --pool HOST:PORT, as `paragent pool serve` printed it",),
    ),
    Mistake(
        title="an address of a pool without a port",
        command="paragent pool status --pool localhost",
        says=("the address of a pool has the form host:port, not 'localhost'",),
    ),
    Mistake(
        title="a pool that does not run",
        command="paragent pool status --pool 127.0.0.1:<port>",
        given=free_port,
        status=1,
        says=("no pool answers at 127.0.0.1:", "start one there with: paragent pool serve --host 127.0.0.1 --port"),
    ),
    Mistake(
        title="rollouts with a pool that does not run",
        command="paragent rollout --mode osworld --data sample --model demo --pool-address 127.0.0.1:<port>",
        given=free_port,
        says=("no pool answers at 127.0.0.1:", "start one there with: paragent pool serve --host 127.0.0.1 --port"),
    ),
    Mistake(
        title="a port for a pool that another program uses",
        command="paragent pool serve --provider-name process --num-vms 1 --name mistakes-port --port <port>",
        given=busy_port,
        says=("cannot listen at 127.0.0.1:", "choose another port, or stop the program that uses it"),
    ),
    Mistake(
        title="a machine that the pool does not have",
        command="paragent pool retire m99 --pool 127.0.0.1:<port>",
        given=pool,
        says=("there is no live machine 'm99'; live machines: m0",),
    ),
    Mistake(
        title="an image to remove that does not exist",
        command="paragent vm rm ubuntu",
        says=("there is no image 'ubuntu'; images:",),
    ),
    Mistake(
        title="an image to build that does not exist",
        command="paragent vm build ubuntu",
        says=("'ubuntu' is not one of tiny, desktop; see `paragent vm build --help`",),
    ),
    Mistake(
        title="an environment with machines, served without a pool",
        command="paragent env serve --mode osworld",
        says=("the environment 'osworld' needs a machine: set --pool-address to the pool of `paragent pool serve`",),
    ),
)
