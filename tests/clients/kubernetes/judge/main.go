// Judges manifests by the rules of pod security admission. Prints one line of JSON for each object: the object, the strictest
// level that lets its pods in, by the rules of Kubernetes 1.33 and by the newest, and why the next one does not. Of a namespace
// the level that it enforces.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigs "sigs.k8s.io/yaml"
)

type judged struct {
	Object json.RawMessage `json:"object"`
	Level  string          `json:"level"`
	Why    string          `json:"why"`
}

// Of an object that has pods.
func podOf(kind string, text []byte) (*metav1.ObjectMeta, *corev1.PodSpec, error) {
	switch kind {
	case "Pod":
		pod := &corev1.Pod{}
		err := json.Unmarshal(text, pod)
		return &pod.ObjectMeta, &pod.Spec, err
	case "Deployment", "DaemonSet":
		set := &appsv1.DaemonSet{}
		err := json.Unmarshal(text, set)
		return &set.Spec.Template.ObjectMeta, &set.Spec.Template.Spec, err
	}
	return nil, nil, nil
}

func judge(rules policy.Evaluator, meta *metav1.ObjectMeta, spec *corev1.PodSpec) (api.Level, string) {
	why := ""
	for _, level := range []api.Level{api.LevelRestricted, api.LevelBaseline} {
		isIn := true
		for _, version := range []api.Version{api.LatestVersion(), api.MajorMinorVersion(1, 33)} {
			found := policy.AggregateCheckResults(rules.EvaluatePod(api.LevelVersion{Level: level, Version: version}, meta, spec))
			if !found.Allowed {
				isIn, why = false, found.ForbiddenDetail()
			}
		}
		if isIn {
			return level, why
		}
	}
	return api.LevelPrivileged, why
}

func run(file string) error {
	rules, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	documents := yaml.NewYAMLReader(bufio.NewReader(opened))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := sigs.YAMLToJSON(document)
		if err != nil {
			return err
		}
		head := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(text, head); err != nil {
			return err
		}
		line := judged{Object: text, Level: head.Labels[api.EnforceLevelLabel]}
		meta, spec, err := podOf(head.Kind, text)
		if err != nil {
			return err
		}
		if spec != nil {
			level, why := judge(rules, meta, spec)
			line.Level, line.Why = string(level), why
		}
		if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
			return err
		}
	}
}

func main() {
	for _, file := range os.Args[1:] {
		if err := run(file); err != nil {
			fmt.Fprintln(os.Stderr, file, err)
			os.Exit(1)
		}
	}
}
