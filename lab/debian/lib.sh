# Shell functions for scenarios on a Debian host: . /lab/lib-debian.sh
#
# A scenario that calls reboot_host is run again, from its start, with the next number in $boot: 1, 2, ...
. /lab/lib.sh

mkdir -p /var/lib/lab
boot=$(cat /var/lib/lab/boot 2>/dev/null || echo 1)
lab_failed=$(cat /var/lib/lab/failed 2>/dev/null || echo 0)

# reboot_host: as an operator does it. Never returns.
reboot_host() {
    echo $((boot + 1)) >/var/lib/lab/boot
    echo "$lab_failed" >/var/lib/lab/failed
    echo "-- reboot"
    systemctl reboot --no-block
    while :; do sleep 60; done
}

# restart_count UNIT: how often systemd started it again by itself.
restart_count() { systemctl show --property NRestarts --value "$1"; }

# serving_store: the program that holds the store's socket, by its path.
serving_store() {
    for lab_process in /proc/[0-9]*; do
        case $(readlink "$lab_process/exe") in
            */xylem-xenstored* | */oxenstored* | */xenstored*) readlink "$lab_process/exe" ;;
        esac
    done | sort -u
}
