// Renders manifests to standard output: of a kustomization, `kustomize DIR`, or of a chart by Helm's engine with the values of
// a file, `helm CHART VALUES`.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func kustomize(dir string) (string, error) {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return "", err
	}
	text, err := rendered.AsYaml()
	return string(text), err
}

// As `helm dependency build` does for charts beside this one.
func load(dir string) (*chart.Chart, error) {
	loaded, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	for _, needed := range loaded.Metadata.Dependencies {
		beside, isFile := strings.CutPrefix(needed.Repository, "file://")
		if !isFile {
			return nil, fmt.Errorf("%s: dependency %s is not a file", dir, needed.Name)
		}
		dependency, err := load(filepath.Join(dir, beside))
		if err != nil {
			return nil, err
		}
		if dependency.Metadata.Version != needed.Version {
			return nil, fmt.Errorf("%s: %s is %s", dir, needed.Name, dependency.Metadata.Version)
		}
		loaded.AddDependency(dependency)
	}
	return loaded, nil
}

// As `helm template kennel CHART -n kennel -f VALUES` does.
func helm(dir, file string) (string, error) {
	loaded, err := load(dir)
	if err != nil {
		return "", err
	}
	given, err := chartutil.ReadValuesFile(file)
	if err != nil {
		return "", err
	}
	if err := chartutil.ProcessDependenciesWithMerge(loaded, given); err != nil {
		return "", err
	}
	release := chartutil.ReleaseOptions{Name: "kennel", Namespace: "kennel", Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(loaded, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	rendered, err := engine.Engine{Strict: true}.Render(loaded, values)
	if err != nil {
		return "", err
	}
	var names []string
	for name, text := range rendered {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var all strings.Builder
	for _, name := range names {
		fmt.Fprintf(&all, "---\n# %s\n%s\n", name, rendered[name])
	}
	return all.String(), nil
}

func run(words []string) (string, error) {
	switch {
	case len(words) == 2 && words[0] == "kustomize":
		return kustomize(words[1])
	case len(words) == 3 && words[0] == "helm":
		return helm(words[1], words[2])
	}
	return "", fmt.Errorf("usage: render kustomize DIR | render helm CHART VALUES")
}

func main() {
	text, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(text)
}
