// Renders kustomizations and decodes what they give by the types of Kubernetes, strictly: an unknown or repeated field is an error.
package main

import (
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func render(dir string, strict runtime.Decoder) error {
	options := krusty.MakeDefaultOptions()
	rendered, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return err
	}
	for _, resource := range rendered.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return err
		}
		_, kind, err := strict.Decode(text, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", resource.CurId(), err)
		}
		fmt.Println(kind.Kind, resource.GetName())
	}
	return nil
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	options := json.SerializerOptions{Yaml: true, Strict: true}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, options)
	for _, dir := range os.Args[1:] {
		if err := render(dir, strict); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
