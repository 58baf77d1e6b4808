# Kennel in a container: namespaces of its own, and a control group that is the root of what it sees.
echo "+memory +pids +cpu" >$CGROUP/cgroup.subtree_control
container=$CGROUP/container
mkdir $container
sh -c "echo \$\$ >$container/cgroup.procs && exec /usr/bin/unshare --cgroup --mount --pid --fork sh -c '. /inside.sh'" &
runtime=$!
# Nothing that the container does not see is in its group, as with every container runtime.
until_true [ -e /tmp/inside ]
echo $runtime >$CGROUP/cgroup.procs
touch /tmp/alone
wait $runtime
echo end
