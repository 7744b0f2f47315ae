# Shell functions for scenarios with two hosts, after lib.sh: . /lab/lib-pair.sh
#
# The scenario runs on host a. Names of the hosts: a and b on the link, where guests are (10.0.0.1, 10.0.0.2), steady-a
# and steady-b on a network that nothing disturbs (10.0.1.1, 10.0.1.2). All below go by the latter.

# on_b COMMAND...: runs a shell command on host b, through one connection that stays open.
on_b() { ssh -o ControlMaster=auto -o ControlPath=/run/on_b -o ControlPersist=yes -o LogLevel=ERROR steady-b "$@"; }

# order WORDS...: tells the lab something; prints its answer, or fails with it.
order() {
    lab_answer=$(
        flock 9
        echo "$*" >&8
        read -r lab_answer <&8
        echo "$lab_answer"
    ) 9>/run/orders.lock
    case $lab_answer in
        ok) ;;
        "ok "*) echo "${lab_answer#ok }" ;;
        *)
            echo "$*: ${lab_answer#error }" >&2
            return 1
            ;;
    esac
}

# link cut|restore|delay MILLISECONDS|throttle KILOBYTES_PER_SECOND|loss PERCENT [from a|from b]: from now on, in both
# directions or in one; what was said before stays so until `link restore`.
# link bytes: how many a and b have sent over it.
# link observe ADDRESS [MILLISECONDS]: asks a guest for a sign of life that often (20), by a way that is never cut.
# link observed: its longest silence in milliseconds, answers and questions since this was last asked.
link() { order link "$@"; }

# power_cut b: takes host b's power away. power_on b: switches it on again, with the disk that it had, and waits for it.
# The disk is /var/lib/xylem; all other files are those of the first boot.
power_cut() {
    order power cut "$1" || return 1
    rm -f /run/on_b
}
power_on() { order power on "$1" && wait_for_b; }

# wait_for_b: until it takes commands.
wait_for_b() { wait_for 'ssh -o ConnectTimeout=5 -o LogLevel=QUIET steady-b true' 180 || fail "host b does not come up"; }

# on_both COMMAND: runs a shell command on each host.
on_both() { sh -c "$1" && on_b "$1"; }

# serve_nbd NAME...: host a serves disks of that name, by NBD on all its addresses: each /srv/NAME, by default a copy of
# the guests' disk image. Other hosts' SRs go there, or connect_nbd.
serve_nbd() {
    mkdir -p /srv
    printf '%s\n' '[generic]' 'listenaddr = 0.0.0.0' 'allowlist = true' >/tmp/nbd.conf
    for lab_name in "$@"; do
        [ -e "/srv/$lab_name" ] || cp /guest/disk.img "/srv/$lab_name"
        printf '%s\n' "[$lab_name]" "exportname = /srv/$lab_name" >>/tmp/nbd.conf
    done
    nbd-server -C /tmp/nbd.conf >>/results/nbd-server.log 2>&1 </dev/null || fail "nbd-server does not start"
    wait_for 'grep -q :2A39 /proc/net/tcp' 30 || fail "nbd-server does not listen"
}

# connect_nbd NAME NUMBER [HOST]: one of those disks is /dev/nbdNUMBER on both hosts, through the network of HOST: steady-a
# by default, or a.
connect_nbd() {
    on_both "modprobe nbd nbds_max=16 && /usr/sbin/nbd-client -N $1 ${3:-steady-a} /dev/nbd$2 -block-size 512 >/dev/null"
}

# The console of a guest is on the host where it is: what it printed on a, then on b.
pair_console() {
    cat "$(console_log "$1")" 2>/dev/null
    on_b "cat $(console_log "$1")" 2>/dev/null
}

# The port can be opened once: a shell that this one starts has it already.
lab_port=$(grep -l '^xylem.orders$' /sys/class/virtio-ports/*/name | cut -d / -f 5)
[ -e /proc/self/fd/8 ] || exec 8<>"/dev/$lab_port"
wait_for_b
