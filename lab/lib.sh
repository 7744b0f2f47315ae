# Shell functions for scenarios: . /lab/lib.sh
#
# A scenario's exit status is 1 if any `check` in it failed, even if its last command did not.

lab_failed=0
trap 'status=$?; [ $status != 0 ] || [ $lab_failed = 0 ] || status=1; exit $status' EXIT

# fail MESSAGE: ends the scenario.
fail() {
    echo "FAILED: $*"
    exit 1
}

# check NAME COMMAND...: runs a command that must succeed; goes on if it does not.
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
