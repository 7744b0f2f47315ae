# Is this a Debian host under Xen as its packages make one? And does it come back from a reboot?
. /lab/lib-debian.sh

echo "boot $boot: $(cat /etc/debian_version), $(uname -r), $(cat /run/lab-state)"
xl list
check "systemd is init, and the boot is complete" grep -q running /run/lab-state || systemctl --failed
check "systemd found nothing wrong" test "$(systemctl --failed --quiet | wc -l)" = 0
check "Xen's packages started their store" test "$(serving_store | wc -l)" = 1
check "the store knows dom0's name" test "$(xenstore-read /local/domain/0/name)" = Domain-0
check "xenbr0 is up" ip -4 addr show dev xenbr0 up
check "there is an sshd" systemctl is-active ssh
[ "$boot" = 2 ] || reboot_host
check "what was written before the reboot is still there" test -s /var/lib/lab/boot
serving_store
systemd-analyze
systemd-analyze blame | head -20
