# Shell functions for scenarios: . /lab/lib.sh
#
# A scenario's exit status is 1 if any `check` in it failed, even if its last command did not.

lab_failed=0
trap 'status=$?; [ $status != 0 ] || [ $lab_failed = 0 ] || status=1; exit $status' EXIT

# Words for a Linux guest's command line that spare it seconds of emulated work.
FAST_BOOT="cryptomgr.notests rodata=off mitigations=off"

# fail MESSAGE: ends the scenario.
fail() {
    echo "FAILED: $*"
    exit 1
}

# check NAME COMMAND...: runs a command that must succeed; continues if it does not.
check() {
    lab_name=$1
    shift
    if lab_output=$("$@" 2>&1); then
        echo "ok: $lab_name"
    else
        lab_status=$?
        lab_failed=$((lab_failed + 1))
        echo "FAILED: $lab_name (status $lab_status: $*)"
        [ -z "$lab_output" ] || echo "$lab_output" | sed 's/^/    /'
        return 1
    fi
}

# refused_with PATTERN COMMAND...: it fails with one line that matches.
refused_with() {
    lab_pattern=$1
    lab_scratch=${lab_scratch:-/tmp}
    shift
    "$@" >"$lab_scratch/refused.out" 2>"$lab_scratch/refused.err" && return 1
    cat "$lab_scratch/refused.err"
    [ "$(wc -l <"$lab_scratch/refused.err")" = 1 ] && grep -q -- "$lab_pattern" "$lab_scratch/refused.err"
}

# wait_for COMMAND SECONDS: until the command (one shell string) succeeds.
wait_for() {
    lab_deadline=$(($(date +%s) + $2))
    until eval "$1" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$lab_deadline" ] || return 1
        sleep 0.1
    done
}

# console_log DOMAIN: the file where xenconsoled keeps what a domain (by name) printed.
console_log() { echo "/var/log/xen/console/guest-$1.log"; }

# console_wait DOMAIN PATTERN SECONDS: until the domain's console has a matching line.
console_wait() {
    wait_for "grep -q -- '$2' '$(console_log "$1")'" "$3"
}

# seconds_since START: with START from $(now); three decimals.
now() { cut -d ' ' -f 1 /proc/uptime; }
seconds_since() { awk -v start="$1" '{ printf "%.2f\n", $1 - start }' /proc/uptime; }

# start_xylemd [OPTIONS...]: the toolstack daemon, until it answers. Its log is in /results/xylemd.log.
start_xylemd() {
    # The scenario's output closes when the last process that holds it ends.
    xylemd "$@" >>/results/xylemd.log 2>&1 </dev/null &
    xylemd_pid=$!
    wait_for 'xy info xen_version' 30 || fail "xylemd does not answer: $(tail -n 3 /results/xylemd.log)"
}

# kill_xylemd: as a crash would end it.
kill_xylemd() {
    kill -9 "$xylemd_pid"
    wait "$xylemd_pid" 2>/dev/null
}

# store_pid: our store daemon. Its broker is the same program under another name.
store_pid() {
    for lab_pid in $(pidof xylem-xenstored); do
        [ "$(cat "/proc/$lab_pid/comm")" != xylem-xenstored ] || echo "$lab_pid"
    done
}

# confined PID GROUP: a program of others that xylemd started without the rights that it does not need.
confined() {
    grep -q '^NoNewPrivs:.1$' "/proc/$1/status" && grep -q '^Seccomp:.2$' "/proc/$1/status" || return 1
    [ "$(readlink "/proc/$1/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || return 1
    [ "$(cat "/proc/$1/cgroup")" = "0::$2" ] && [ "$(cat "/sys/fs/cgroup$2/pids.max")" = 256 ]
}

# pids_of [P]ATTERN: processes whose command line matches; the brackets keep this one's own from it.
pids_of() {
    grep -l -- "$1" /proc/[0-9]*/cmdline 2>/dev/null | cut -d / -f 3
}

# host_state: all that a VM may leave behind in dom0, as text to compare.
host_state() {
    echo "# domains"
    xl list | awk '{ print $1, $2 }'
    echo "# store"
    # xl leaves the first two empty; the end of the next VM removes them. In the third dom0's kernel notes why a device of
    # a domain that died did not come; it is never removed.
    xenstore-ls -fp / | grep -v -E '^/(vm|libxl) = ""|^/local/domain/0/error[/ ]'
    echo "# loop devices"
    losetup -a
    echo "# bridge ports and interfaces"
    ls /sys/class/net/xenbr0/brif /sys/class/net
    echo "# grants that the backends hold"
    ls /sys/bus/xen-backend/devices
    echo "# what libxl keeps of domains"
    ls /var/lib/xen 2>/dev/null | grep '^userdata-' | grep -v '^userdata-d\.0\.'
    echo "# attached VDIs, mounts for them and mapped devices"
    find /run/xylem/sr -type f 2>/dev/null
    ls /run/xylem/mount /dev/mapper 2>/dev/null | grep -v "pool"
}

# same_state BEFORE: compares a saved host_state with the present one. dom0's kernel releases devices, and Xen a
# domain's last pages, a moment after they were told to; what is left after ten seconds is left.
same_state() {
    lab_settled_by=$(($(date +%s) + 10))
    while host_state >/tmp/state.now; ! cmp -s "$1" /tmp/state.now; do
        [ "$(date +%s)" -lt "$lab_settled_by" ] || break
        sleep 0.2
    done
    diff "$1" /tmp/state.now
}

# linux_cfg NAME [LINES...]: a Linux guest's configuration file in /tmp.
linux_cfg() {
    lab_name=$1
    shift
    {
        echo "name = '$lab_name'"
        echo "kernel = '/guest/vmlinuz'"
        echo "ramdisk = '/guest/initramfs'"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}

# hvm_cfg NAME [LINES...]: an HVM guest's configuration file in /tmp, and its disk, whose boot sector has the machine code
# $boot_code (as printf takes it); its serial port is /tmp/NAME.serial.
hvm_cfg() {
    lab_name=$1
    shift
    dd if=/dev/zero of="/tmp/$lab_name.img" bs=1024 count=1024 2>/dev/null
    # shellcheck disable=SC2059 # it is a format
    printf "$boot_code" | dd of="/tmp/$lab_name.img" conv=notrunc 2>/dev/null
    printf '\125\252' | dd of="/tmp/$lab_name.img" bs=1 seek=510 conv=notrunc 2>/dev/null
    {
        echo "name = '$lab_name'"
        echo "type = 'hvm'"
        echo "memory = 64"
        echo "disk = ['/tmp/$lab_name.img,raw,hda,w']"
        echo "serial = 'file:/tmp/$lab_name.serial'"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}

# xl_linux_cfg NAME IMAGE: a file for xl, in its own long words, of a Linux guest that writes to its disk all the time. xl
# does not unpack the compressed kernel under emulation in any time worth waiting for, so it gets the other if there is one.
xl_linux_cfg() {
    lab_kernel=/guest/vmlinux
    [ -e $lab_kernel ] || lab_kernel=/guest/vmlinuz
    cat >"/tmp/$1.cfg" <<CONFIG
name = "$1"
type = "pv"
kernel = "$lab_kernel"
ramdisk = "/guest/initramfs"
extra = "console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1"
memory = 128
disk = [ "format=raw,vdev=xvda,access=rw,target=$2" ]
vif = [ "bridge=xenbr0" ]
CONFIG
}

# unikernel_cfg NAME [LINES...]: a unikernel's configuration file in /tmp.
unikernel_cfg() {
    lab_name=$1
    shift
    {
        echo "name = '$lab_name'"
        echo "kernel = '/guest/unikernel'"
        echo "memory = 8"
        for lab_line in "$@"; do echo "$lab_line"; done
    } >"/tmp/$lab_name.cfg"
}

# no_failed_io LOG...: no guest read back anything wrong, from its disk or its network, while it was up. (As it goes down, its
# disk is unmounted under who writes.)
no_failed_io() {
    awk 'FNR == 1 || /XYLEM-GUEST: init reached/ { down = 0 }
        /XYLEM-GUEST: shutdown=/ { down = 1 }
        /(io|net)=failed/ && !down { failed = 1 }
        END { exit failed }' "$@"
}

# guest_says NAME KEY=VALUE: whether a guest's console has the line.
guest_says() {
    grep -q -- "XYLEM-[A-Z]*: .*$2" "$(console_log "$1")"
}
