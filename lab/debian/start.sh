# Runs one scenario on a Debian host once that is up, or a shell. init.sh says what goes through the three channels.
#
# /lab is a disk of this run, read-only. A scenario that reboots the host is run again after it, see lib-debian.sh.
# /lab/settings sets: mode=scenario|shell, columns and rows of a shell's terminal, and a scenario's arguments.

export HOME=/root TERM=linux LANG=C.UTF-8
ports=/dev/virtio-ports
# udev may not have come to them yet.
tries=600
until [ -e $ports/xylem.control ] && [ -e $ports/xylem.results ] || [ $tries = 0 ]; do
    tries=$((tries - 1))
    sleep 0.5
done
exec 3>$ports/xylem.control

# collect: hand out what /results holds, and logs.
collect() {
    mkdir -p /results/logs
    cp -r /var/log/xen/. /results/logs/
    dmesg >/results/logs/dom0-dmesg.log
    journalctl --no-pager >/results/logs/journal.log
    systemctl --no-pager --failed >/results/logs/failed-units.log
    tar -C /results -cf $ports/xylem.results .
    sync
}

. /lab/settings
cd /root || exit 1
# "degraded" is for a scenario to judge.
systemctl is-system-running --wait >/run/lab-state
[ -e /var/lib/lab/boot ] || [ ! -d /lab/files ] || cp -r /lab/files/. /
echo "started $(cut -d ' ' -f 1 /proc/uptime)" >&3
if [ "$mode" = shell ]; then
    setsid -c sh -c 'stty -onlcr rows "$0" cols "$1"; exec bash -i' "$rows" "$columns" <>/dev/hvc1 >&0 2>&1
    collect
    echo "exit 0" >&3
    exit
fi
exec 4<>$ports/xylem.output
sh /lab/scenario "$@" >&4 2>&1 </dev/null 3>&- 4>&- &
scenario=$!
# A host that goes down takes its scenario with it: there is no status yet.
trap 'exit 0' TERM
{ read -r _ <&4 && echo stopped >&3 && kill -KILL $scenario; } &
wait $scenario
status=$?
collect
echo "exit $status" >&3
