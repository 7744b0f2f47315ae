# A Linux guest that checks its own memory, disk and network moves back and forth, and each time something is lost at a random
# moment. After each it is known on both hosts where the guest runs: on one of them, and it goes on there; or nowhere, if it
# went down with host b. Words:
#   kills=100         how often
#   seed=1            of the random choices
#   what=W[,W...]     of: here, there (the daemon that sends or receives is killed), cut (the link, for a while),
#                     power (host b's)
# For instance: lab pair --vmlinux --timeout 7200 kills kills=20 what=here,there
. /lab/lib.sh
. /lab/lib-pair.sh
kills=100 seed=1 what=here,there,cut,power
for word in "$@"; do
    case $word in
        kills=* | seed=* | what=*) eval "${word%%=*}='${word#*=}'" ;;
        *) fail "there is no '$word'" ;;
    esac
done
lab_mem=2

# random COUNT: sets `chosen` to a number below it; the same ones for each run with a seed.
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    chosen=$((seed / 65536 % $1))
}

daemon_on() { on "$1" '. /lab/lib.sh && start_xylemd'; }
kill_daemon() { on "$1" 'kill -9 $(pidof xylemd); while pidof xylemd >/dev/null; do sleep 0.05; done'; }

# seen HOST: how the VM is listed there: running, other (suspended, starting, ...), none, or silent.
seen() {
    on "$1" 'xy list 2>/dev/null' >/tmp/seen || { echo silent && return; }
    awk '$1 == "mover" { found = ($5 ~ /^[r-][b-]----/ ? "running" : "other") } END { print found ? found : "none" }' /tmp/seen
}

# settled: both say the same of the VM.
settled() {
    on_a=$(seen a) at_b=$(seen b)
    case $on_a-$at_b in running-none | none-running | none-none) ;; *) return 1 ;; esac
}

# lose: what is chosen, at the chosen moment, and what a host's own supervisor does after it.
lose() {
    case $1 in
        here) kill_daemon "$host" && daemon_on "$host" ;;
        there) kill_daemon "$(other "$host")" && daemon_on "$(other "$host")" ;;
        cut)
            link cut
            random 20
            sleep "$chosen"
            link restore
            ;;
        power)
            power_cut b && power_on b || return 1
            on_b 'modprobe nbd nbds_max=16; mkdir -p /results' && daemon_on b
            on_b 'xy sr-list' | grep -q '^s ' || on_b 'xy sr-create s nbd server=10.0.1.1'
            ;;
    esac
}

create() {
    check "create" xy create -q /tmp/mover.cfg || exit
    check "it is up" console_wait mover 'XYLEM-GUEST: mem=1' 600 || exit
    host=a
}

serve_nbd disk
for host in a b; do
    check "xylemd on $host" daemon_on "$host"
    check "block devices for NBD on $host" on "$host" 'modprobe nbd nbds_max=16'
    check "the SR on $host" on "$host" 'xy sr-create s nbd server=10.0.1.1'
done
mover_cfg mover pvh s:disk,,xvda,w
create
# How long a move takes, in tenths of seconds: the moments to choose from.
begun=$(now)
check "a move without a loss" xy migrate mover b || exit
long=$(seconds_since "$begun" | awk '{ print int($1 * 11) + 1 }')
host=b
check "it goes on" goes_on_at b mover io tick

kinds=$(echo "$what" | tr , ' ')
for number in $(seq "$kills"); do
    # shellcheck disable=SC2086 # words
    set -- $kinds
    random $#
    shift "$chosen"
    loss=$1
    random "$long"
    delay=$((chosen / 10)).$((chosen % 10))
    from=$host
    on "$from" "xy migrate mover $(other "$from")" >/tmp/move.out 2>&1 </dev/null &
    move=$!
    sleep "$delay"
    check "$number: $loss is lost after $delay s of a move from $from" lose "$loss" || exit
    wait_for settled 300
    check "$number: both know where it is (a: $on_a, b: $at_b)" settled || exit
    kill $move 2>/dev/null
    wait $move
    ended=$?
    case $on_a-$at_b in
        running-none) host=a ;;
        none-running) host=b ;;
        none-none)
            check "$number: it was lost with its host only" [ "$loss" = power ] || exit
            echo "row: kill=$number loss=$loss delay_s=$delay from=$from status=$ended at=none"
            create
            continue
            ;;
    esac
    echo "row: kill=$number loss=$loss delay_s=$delay from=$from status=$ended at=$host $(tail -n 1 /tmp/move.out)"
    check "$number: it goes on, on $host" goes_on_at "$host" mover io mem tick || exit
    check "$number: with its address" ping -c 1 -W 20 10.0.0.5
done
check "shutdown" on "$host" 'xy shutdown -w mover'
